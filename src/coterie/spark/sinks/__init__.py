"""Sinks: where the batches of tasks are written."""
