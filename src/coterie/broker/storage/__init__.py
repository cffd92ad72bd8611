"""The log on disk: topics, partitions, batches and producers in one SQLite file, one thread that writes it."""
