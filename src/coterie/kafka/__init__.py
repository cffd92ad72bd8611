"""A worker's Kafka clients: topics are read and written through librdkafka; group requests are sent over asyncio,
encoded by kio."""
