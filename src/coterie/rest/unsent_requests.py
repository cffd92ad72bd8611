"""The errors of httpx after which the other worker cannot have performed the request, because it was not sent."""

import httpx

UNREACHABLE_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""No connection to the worker was opened."""
INVALID_URL_ERRORS = (httpx.InvalidURL, httpx.UnsupportedProtocol)
"""The URL is not an http or https URL."""
