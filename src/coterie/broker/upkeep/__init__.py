"""Work on the log beside its use: retention, compaction, check and backup."""
