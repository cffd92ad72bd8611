"""Reads the description of a group from its workers' REST API."""
