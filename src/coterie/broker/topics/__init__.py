"""Topics: their names, configs, retention and compaction settings; the broker's configs, and config changes."""
