"""Checkpoint generations of a connector: the input and the positions of each task, and how both change without loss."""
