"""The coordinator of a group of the classic protocol."""
