"""Generations of a connector's checkpoints: what each task reads, where it is, and how both change without loss."""
