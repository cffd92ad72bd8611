"""Commands that ask a worker's REST API, and say in words why nothing came of it."""

import httpx

from coterie.nouns.errors import WorldError
from coterie.rest import refusal


def open_client() -> httpx.Client:
    """For requests to any worker; close it at the end."""
    # Writes wait for the group to settle, for up to 90 s as in Connect; so long a worker waits for its leader, too.
    return httpx.Client(timeout=httpx.Timeout(100, connect=5), trust_env=False)


def ask(url: str, method: str, path: str, *, body: object = None) -> httpx.Response:
    """:raises WorldError: when nobody answers, or with what the worker says is wrong."""
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
        return f"The worker at {url} has taken the request and does not answer: it, or its leader, hangs."
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return f"{url} is not the URL of a worker: say --url http://HOST:PORT."
    return (
        f"No worker answers at {url} ({str(error) or type(error).__name__}): "
        "start a cluster with `coterie up`, or name a worker with --url."
    )


def message_in(response: httpx.Response) -> str:
    """What a worker says is wrong."""
    return refusal.message_in(response) or response.text[:500] or response.reason_phrase
