"""Requests to the leader: client requests that only the leader can serve are forwarded, task configs are sent to it."""

import json
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests import RequestRefused
from coterie.herder.seams import SignatureRefusedError
from coterie.herder.session_keys import Signing
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.rest import signatures
from coterie.rest.problems import ProblemRefusal
from coterie.rest.refusal import message_in

TIMEOUT_S = 95.0
"""A little more than the leader's own timeout of a request."""


def open_client() -> httpx.AsyncClient:
    """An HTTP client for requests between workers. It ignores proxy settings of the environment; the caller closes
    it."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(TIMEOUT_S, connect=5.0),
        limits=httpx.Limits(max_connections=64, max_keepalive_connections=8),
        headers={"User-Agent": "coterie"},
        trust_env=False,
    )


class HttpLeaderClient:
    """`LeaderClient` over HTTP."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        configs: Sequence[Mapping[str, str]],
        signing: Signing | None,
    ) -> None:
        """``POST /connectors/{connector}/tasks``, signed with ``signing`` unless that is None.

        :raises SignatureRefusedError: when the leader responds that the signature is not valid (403).
        :raises WorldError: when the leader cannot be reached or refuses; the message contains the reason.
        """
        url = f"{leader_url.rstrip('/')}/connectors/{quote(connector, safe='')}/tasks"
        body = json.dumps([dict(config) for config in configs]).encode()
        headers = {"Content-Type": "application/json"}
        if signing is not None:
            headers |= signatures.headers(signing.signature(body))
        try:
            response = await self._client.post(url, content=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise WorldError(f"The leader at {leader_url} cannot be reached: {_words(error)}") from error
        if response.is_error:
            refused = SignatureRefusedError if response.status_code == 403 else WorldError
            # The message is logged. A body in another form than Connect's, for example from a proxy, might quote the
            # configs that were sent, so it is left out.
            words = message_in(response)
            why = f": {words:.500}" if words else ""
            raise refused(f"The leader at {leader_url} answered {response.status_code}{why}")


async def forward(
    client: httpx.AsyncClient, request: Request, body: bytes, refused: RequestRefused, *, path: str | None = None
) -> Response:
    """Forward ``request`` to the worker in ``refused``; ``path`` replaces the path of the request unless it is None.

    As in Connect, the query parameter ``forward`` limits the number of hops: it is absent in a client's request,
    ``true`` after the first hop and ``false`` after the second, the last. In a settled group one hop is enough.

    :raises ProblemRefusal: after the last hop, or when no URL is known.
    :raises WorldError: when the worker cannot be reached.
    """
    hop = request.query_params.get("forward")
    if refused.leader_url is None or hop == "false":
        raise ProblemRefusal(refused)
    query = [(key, value) for key, value in request.query_params.multi_items() if key != "forward"]
    query.append(("forward", "true" if hop is None else "false"))
    raw_path = request.scope.get("raw_path") or request.url.path.encode()
    path = path or raw_path.decode()
    headers = {"Content-Type": "application/json", **signatures.carried(request.headers)}
    if (authorization := request.headers.get("authorization")) is not None:
        headers["Authorization"] = authorization
    try:
        url = httpx.URL(refused.leader_url.rstrip("/") + path, params=query)
        response = await client.request(request.method, url, content=body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise WorldError(f"IO Error trying to forward REST request: {_words(error)}") from error
    kept = {name: value for name in ("content-type", "location") if (value := response.headers.get(name)) is not None}
    return Response(response.content, status_code=response.status_code, headers=kept)


def _words(error: Exception) -> str:
    """The message of ``error``, or its type when it has no message."""
    return str(error) or type(error).__name__
