"""Source connectors."""
