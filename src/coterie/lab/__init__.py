"""The simulator, which runs the real machines of groups, workers, clients and producers with random faults; and
scenarios, whose transcripts the real machines print."""
