"""Requests to a worker's REST API, and the error messages when they fail."""

import ssl

import httpx

from coterie.cli.options import current_rest_login
from coterie.config.security import TlsFiles
from coterie.config.tls import DeferredClientContext, client_context
from coterie.nouns.errors import WorldError
from coterie.rest import error_body


def open_http_client() -> httpx.Client:
    """Open an HTTP client for requests to any worker; the caller closes the client. The client adds no log-in to the
    requests: :func:`basic_login` is an argument of each request that needs a log-in.

    :raises WorldError: when the CA certificates cannot be read.
    """
    login = current_rest_login()
    # Writes wait up to 90 s for the end of a rebalance, as in Connect. A worker waits as long for its leader.
    return httpx.Client(
        timeout=httpx.Timeout(100, connect=5),
        verify=(
            DeferredClientContext.trusting_system_certificates()
            if login.ca_file is None
            else client_context(TlsFiles(trusted_ca_location=str(login.ca_file)))
        ),
        trust_env=False,
    )


def basic_login() -> tuple[str, str] | None:
    """The user and the password of the running command; None without ``--user``."""
    login = current_rest_login()
    return None if login.user is None else (login.user, login.password)


def is_weaker_scheme(url: str, *, given_url: str) -> bool:
    """Whether requests to ``url`` are not encrypted, but those to ``given_url``, the URL in the command, are. A URL
    that a worker's response contains must not make the command send the password in clear.

    :raises httpx.InvalidURL: when one of the URLs is not valid.
    """
    return httpx.URL(given_url).scheme == "https" and httpx.URL(url).scheme != "https"


def send_request_or_raise(url: str, method: str, path: str, *, body: object = None) -> httpx.Response:
    """Send one request to the worker at ``url``, with ``body`` as JSON, and return the response if it is a success.

    :raises WorldError: when the worker does not respond, ``url`` is not valid, or the response is an error (then with
        the error's message).
    """
    try:
        with open_http_client() as client:
            response = client.request(method, url.rstrip("/") + path, json=body, auth=basic_login())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise WorldError(no_response_message(url, error)) from error
    if response.is_error:
        raise WorldError(f"{error_message(response)} (HTTP {response.status_code} from {url})")
    return response


def no_response_message(url: str, error: Exception) -> str:
    """The message for a request to ``url`` that failed with ``error``, without a response."""
    if (message := tls_failure_message(url, error)) is not None:
        return message
    if isinstance(error, httpx.ReadTimeout):
        return (
            f"The worker at {url} received the request but did not respond in time: the worker or its leader does not "
            "react. Check the logs of both."
        )
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
        return f"{url} is not the URL of a worker: use --url http://HOST:PORT."
    return (
        f"No worker responds at {url} ({str(error) or type(error).__name__}): "
        "start a cluster with `coterie up`, or name a worker with --url."
    )


def tls_failure_message(url: str, error: Exception) -> str | None:
    """The message for a request to ``url`` that failed with ``error``, if a process listens at ``url`` but its
    certificate is not accepted, or TLS fails for another reason. Else None."""
    match find_os_error_cause(error):
        case ssl.SSLEOFError():
            return None  # The process has closed the connection, in most cases because it ends.
        case ssl.SSLCertVerificationError() as tls_error:
            return (
                f"The TLS connection to {url} failed (certificate verify failed: {tls_error.verify_message}): with "
                "--ca, name the file with the CA certificate that issued the worker's certificate; and use a URL whose "
                "host name is in the worker's certificate."
            )
        case ssl.SSLError() as tls_error:
            return f"The TLS connection to {url} failed ({tls_error}): use the URL of an https listener."
        case _:
            return None


def find_os_error_cause(error: BaseException) -> OSError | None:
    """The operating system's or TLS's error that made a request fail with ``error``, an error of httpx; None if there
    is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__  # Not `__cause__`, which httpcore removes with `raise … from None`.
    return cause


def error_message(response: httpx.Response) -> str:
    """The error message in a worker's error response; without one the beginning of the response's text, or, if that is
    empty, the name of the HTTP status. For status 401, always an advice to log in."""
    if response.status_code == 401:
        return "The worker needs a log-in: use --user NAME with the right password"
    return error_body.error_message(response) or response.text[:500] or response.reason_phrase
