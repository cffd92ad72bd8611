"""Bytes: primitives, Kafka messages and frames, record batches, the embedded Connect protocol."""
