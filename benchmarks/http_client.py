"""The HTTP client of benchmarks and tests for requests to workers without TLS."""

import httpx

from coterie.config.tls import DeferredClientContext

http = httpx.Client(
    # `httpx.get` and its like read the system's certificates for each request, which takes 60 ms of CPU.
    verify=DeferredClientContext.trusting_system_certificates(),
    # Workers end and start again: a connection is never kept for the next request.
    limits=httpx.Limits(max_keepalive_connections=0),
    trust_env=False,
)
