"""A worker's membership by the classic protocol."""
