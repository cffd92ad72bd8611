"""The embedded broker: Kafka's wire over TCP, topics and groups in a SQLite log."""
