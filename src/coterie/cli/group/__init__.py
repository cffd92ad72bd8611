"""A group as its workers' REST API tells of it."""
