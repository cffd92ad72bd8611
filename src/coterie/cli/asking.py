"""Requests to a worker's REST API, and the error messages when they fail."""

import httpx

from coterie.nouns.errors import WorldError
from coterie.rest import refusal


def open_client() -> httpx.Client:
    """Open a client for requests to any worker; the caller closes it."""
    # Writes wait up to 90 s for the end of a rebalance, as in Connect. A worker waits as long for its leader.
    return httpx.Client(timeout=httpx.Timeout(100, connect=5), trust_env=False)


def ask(url: str, method: str, path: str, *, body: object = None) -> httpx.Response:
    """Send one request to the worker at ``url``.

    :raises WorldError: when no worker responds, or with the message of an error response.
    """
    try:
        with open_client() as client:
            response = client.request(method, url.rstrip("/") + path, json=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise WorldError(nobody_at(url, error)) from error
    if response.is_error:
        raise WorldError(f"{message_in(response)} (HTTP {response.status_code} from {url})")
    return response


def nobody_at(url: str, error: Exception) -> str:
    if isinstance(error, httpx.ReadTimeout):
        return (
            f"The worker at {url} received the request but did not respond in time: it or its leader does not react. "
            "Check the logs of both."
        )
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return f"{url} is not the URL of a worker: use --url http://HOST:PORT."
    return (
        f"No worker responds at {url} ({str(error) or type(error).__name__}): "
        "start a cluster with `coterie up`, or name a worker with --url."
    )


def message_in(response: httpx.Response) -> str:
    """The error message in a worker's response."""
    return refusal.message_in(response) or response.text[:500] or response.reason_phrase
