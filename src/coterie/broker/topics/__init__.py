"""Topics: their names, configs and policies; the broker's configs, and how configs are changed."""
