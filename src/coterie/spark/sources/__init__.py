"""The sources (plug-ins that read the input of a connector): files, Kafka, a user's function, and generated rows."""
