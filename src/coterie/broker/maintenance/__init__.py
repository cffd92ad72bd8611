"""Maintenance of the log: retention, compaction, checks and backups."""
