"""Storage of the broker's log: topics, partitions, batches and producers in one SQLite file, with one writer thread."""
