"""Connect's HTTP API of a worker, Coterie's own paths in it, and the HTTP client to other workers."""
