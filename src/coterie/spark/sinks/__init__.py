"""Sinks: the plug-ins that write the batches of tasks (:class:`coterie.spark.seams.Sink`)."""
