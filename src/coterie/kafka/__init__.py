"""Kafka clients: topics through a Kafka library, group APIs through kio over asyncio."""
