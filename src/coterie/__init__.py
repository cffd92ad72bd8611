"""Coterie runs fleets of PySpark streaming pipelines the way Kafka Connect runs connectors."""

__version__ = "0.1.0"
