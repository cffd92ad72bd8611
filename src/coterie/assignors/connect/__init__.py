"""Assignors of connect groups: from the state of a group to its target assignment."""
