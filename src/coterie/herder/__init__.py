"""A worker's decisions: config state, which jobs to start and stop, the work of the leader."""
