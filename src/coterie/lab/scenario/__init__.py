"""Scenarios from the documents that specify the protocols, run by the real machines. A transcript is a text with the
commands of a scenario and the lines that these commands print."""
