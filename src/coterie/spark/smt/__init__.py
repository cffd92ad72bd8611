"""Transforms and predicates of rows; Connect's name for a transform is SMT, single message transform."""
