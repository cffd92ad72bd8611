"""What a worker decides: config state, what to start and stop, the leader's duties."""
