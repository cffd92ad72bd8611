"""Connect's HTTP API and the HTTP client to the leader."""
