"""Requests to other workers: forwards a client's request to the worker that can serve it, in most cases the leader, and
sends task configs to the leader.
"""

import json
import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import httpx
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.tls import DeferredClientContext
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.seams import SignatureRefusedError
from coterie.herder.session_keys import SigningKey
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.rest import signatures
from coterie.rest.callers import SignFunction, add_caller_headers_if_signable
from coterie.rest.error_body import error_message
from coterie.rest.path_encoding import encoded_path
from coterie.rest.paths import request_path_segments
from coterie.rest.problems import HerderRefusal, NotLoggedInError
from coterie.rest.request_context import context_of
from coterie.rest.unsent_requests import INVALID_URL_ERRORS, UNREACHABLE_ERRORS

RESPONSE_TIMEOUT_S = 95.0
"""How long this worker waits for another worker's response: a little more than 90 s, after which that worker itself
refuses a request."""
CONNECT_TIMEOUT_S = 5.0
"""How long it may take to open a connection to another worker, in seconds."""

FORWARD_PARAMETER = "forward"
"""The query parameter that limits how often a request is forwarded; a client's request has none."""
INCARNATION_HEADER = "X-Coterie-Incarnation"
"""The header of a request with task configs: the incarnation of the connector that was split, percent-encoded. A leader
of Kafka Connect ignores it, and its workers do not send it. It is not signed: a changed value can only cause a refusal,
and without it the task configs are accepted as those of a worker of Kafka Connect."""
FORWARDED_REQUEST_HEADERS = (
    "Authorization",
    "If-Match",
    INCARNATION_HEADER,
    signatures.SIGNATURE_HEADER,
    signatures.ALGORITHM_HEADER,
)
"""The headers of a client's request that are forwarded with it."""
AUDITED_HEADER = "X-Coterie-Audited"
"""The header of a response to a forwarded mutation, if the audit log has its line; see :mod:`coterie.rest.audit`. Kafka
Connect's own workers do not send it."""
FORWARDED_RESPONSE_HEADERS = ("Content-Type", "Location", "ETag", "Retry-After", "WWW-Authenticate", AUDITED_HEADER)
"""The headers of another worker's response that :func:`forward_to_worker` returns. The client receives all but
:data:`AUDITED_HEADER`."""


class RequestNotSentError(WorldError):
    """The other worker could not be reached: it has not received the request."""


class ResponseMissingError(WorldError):
    """The request was sent to the other worker, but the connection broke, or no response came within the time limit:
    that worker may have performed the request."""


def open_http_client(contexts: ReloadedFiles[ssl.SSLContext] | None = None) -> httpx.AsyncClient:
    """An HTTP client for requests between workers. New connections use the newest TLS context of ``contexts``; by
    default they trust the certificates that the system trusts. The client ignores proxy settings of the environment;
    the caller closes it."""
    return httpx.AsyncClient(
        verify=DeferredClientContext.trusting_system_certificates()
        if contexts is None
        else DeferredClientContext(lambda: contexts.value),
        timeout=httpx.Timeout(RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        # Without a limit: requests that wait long for the other worker must not delay others. That worker has a limit.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
        headers={"User-Agent": "coterie"},
        trust_env=False,
    )


class HttpLeaderClient:
    """The :class:`coterie.herder.seams.LeaderClient` of a worker: sends task configs to the leader over HTTP."""

    def __init__(self, http_client: httpx.AsyncClient) -> None:
        self._http_client = http_client

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        incarnation: Incarnation,
        configs: Sequence[Mapping[str, str]],
        signing_key: SigningKey | None,
    ) -> None:
        """Send ``configs`` to the leader as ``POST /connectors/{connector}/tasks``, signed with ``signing_key`` unless
        it is None. Path and body are Kafka Connect's; the header :data:`INCARNATION_HEADER` is added. Returns when the
        leader has accepted them.

        :raises SignatureRefusedError: when the leader responds that the signature is not valid (403).
        :raises WorldError: when the leader cannot be reached or refuses; the message contains the reason.
        """
        url = leader_url.rstrip("/") + encoded_path(("connectors", connector, "tasks"))
        body = json.dumps([dict(config) for config in configs]).encode()
        headers = {"Content-Type": "application/json", INCARNATION_HEADER: quote(incarnation, safe="")}
        if signing_key is not None:
            headers |= signatures.signature_headers(signing_key.signature(body))
        try:
            response = await self._http_client.post(url, content=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise WorldError(f"The request to the leader at {leader_url} failed: {_error_text(error)}") from error
        # A redirect, for example of a proxy, is not followed: the leader has not accepted the configs.
        if not response.is_success:
            error_type = SignatureRefusedError if response.status_code == 403 else WorldError
            # The message is logged. A body in another form than Connect's, for example from a proxy, might quote the
            # configs that were sent, so it is left out.
            message = error_message(response)
            reason = f": {message:.500}" if message else ""
            raise error_type(
                f"The leader at {leader_url} refused the task configs with HTTP {response.status_code}{reason}"
            )


async def forward_to_worker(
    http_client: httpx.AsyncClient,
    request: Request,
    body: bytes,
    redirection: RequestRefused,
    sign: SignFunction,
    *,
    path: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = RESPONSE_TIMEOUT_S,
) -> Response:
    """Send ``request`` with ``body`` to the worker at ``redirection.redirect_url``, and return that worker's response,
    also one with an error status. ``timeout_s``: how long to wait for the response, in seconds. ``path`` replaces the
    path of the request unless it is None. ``headers`` are added. ``sign`` signs the name of the request's caller for
    the other worker.

    As in Connect, the query parameter ``forward`` limits how often a request is forwarded, to two times: it is absent
    in a client's request, ``true`` when the request was forwarded once, and ``false`` when it was forwarded twice. In
    a group without a rebalance one time is enough.

    :raises HerderRefusal: for ``redirection``, when the request was forwarded twice, or ``redirection`` contains no
        URL.
    :raises NotLoggedInError: when the worker, which is one of Kafka Connect, does not accept the request's log-in.
    :raises RequestNotSentError: when the worker cannot be reached.
    :raises ResponseMissingError: when the request was sent and no response has come: it may have been performed.
    :raises WorldError: when the worker's URL is invalid.
    """
    forward_value = request.query_params.get(FORWARD_PARAMETER)
    if redirection.redirect_url is None or (forward_value is not None and forward_value.lower() != "true"):
        raise HerderRefusal(redirection)
    may_forward_again = forward_value is None
    query = [(key, value) for key, value in request.query_params.multi_items() if key != FORWARD_PARAMETER]
    query.append((FORWARD_PARAMETER, "true" if may_forward_again else "false"))
    path = path or encoded_path(request_path_segments(request))
    sent_headers = {
        "Content-Type": "application/json",
        **_select_headers(request.headers, FORWARDED_REQUEST_HEADERS),
        **(headers or {}),
    }
    try:
        url = httpx.URL(redirection.redirect_url.rstrip("/") + path, params=query)
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        forwarded = http_client.build_request(request.method, url, content=body, headers=sent_headers, timeout=timeout)
        context = context_of(request)
        assert context.caller is not None, "the access of the request was checked"
        await add_caller_headers_if_signable(forwarded, context.caller, sign)
        response = await http_client.send(forwarded)
    except UNREACHABLE_ERRORS as error:
        raise RequestNotSentError(_forwarding_error_message(error)) from error
    except INVALID_URL_ERRORS as error:
        raise WorldError(_forwarding_error_message(error)) from error
    except httpx.HTTPError as error:
        raise ResponseMissingError(_forwarding_error_message(error)) from error
    if response.status_code == 401 and "WWW-Authenticate" not in response.headers:
        # Kafka Connect's workers omit the header, without which no browser asks for a password.
        raise NotLoggedInError(response.text)
    return Response(
        response.content,
        status_code=response.status_code,
        headers=_select_headers(response.headers, FORWARDED_RESPONSE_HEADERS),
    )


def _select_headers(headers: Headers | httpx.Headers, names: Sequence[str]) -> dict[str, str]:
    """Those of ``headers`` whose names are in ``names``, without regard to case. The values of a repeated header are
    joined by commas, as RFC 9110, section 5.3, permits for lists such as ``If-Match``. The other headers must not be
    repeated."""
    values = headers.getlist if isinstance(headers, Headers) else headers.get_list
    return {name: ", ".join(values(name)) for name in names if name in headers}


def _forwarding_error_message(error: Exception) -> str:
    """Connect's message for a request that could not be forwarded."""
    return f"IO Error trying to forward REST request: {_error_text(error)}"


def _error_text(error: Exception) -> str:
    """The message of ``error``, or its type when it has no message."""
    return str(error) or type(error).__name__
