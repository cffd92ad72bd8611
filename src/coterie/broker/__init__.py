"""The embedded broker: the Kafka protocol over TCP, with topics and groups stored in a SQLite file."""
