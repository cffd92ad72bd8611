"""The simulator, the scenarios, and what is learned from their traces."""
