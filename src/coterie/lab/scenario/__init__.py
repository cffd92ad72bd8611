"""Scenarios of the source documents, run by the real machines; a transcript contains the commands of a scenario and the
lines that they print."""
