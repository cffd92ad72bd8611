"""The simulator of groups, workers, clients and producers, and the transcripts of scenarios."""
