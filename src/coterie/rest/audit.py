"""The audit log: one line for each request that would change something, written by the worker that performs or refuses
the request. Logger ``coterie.audit``, level INFO; the line is JSON.

    {"user": "alice", "address": "10.0.0.7", "operation": "put_config", "connector": "flights",
     "before": {…}, "after": {…}, "status": 200}

``before`` is the config that the write has replaced. Secret values are hidden. A refused request has a ``message`` with
the first line of the reason, and no configs.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import Response

from coterie.config.secrets import masked_config
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.writes import DeletedConnector, WrittenConnector
from coterie.rest import bodies
from coterie.rest.callers import client_address
from coterie.rest.endpoints import Endpoint, Operation
from coterie.rest.request_context import context_of

logger = logging.getLogger("coterie.audit")

_CONFIG_OPERATIONS = frozenset(
    {Operation.CREATE_CONNECTOR, Operation.PUT_CONFIG, Operation.PATCH_CONFIG, Operation.DELETE_CONNECTOR}
)
"""The operations that change a connector's config: their lines contain the config before and after."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """The audit line of one request."""

    operation: Operation
    targets: dict[str, str]
    """What the request would change, by kind: ``connector``, ``task``, ``worker``, …"""

    @classmethod
    def of(cls, request: Request, endpoint: Endpoint) -> Self:
        """The entry of ``request``, which is for ``endpoint``."""
        return cls(operation=endpoint.operation, targets=dict(request.path_params))

    async def read_target(self, request: Request) -> None:
        """Add the connector's name in the body of a creation, whose path has none."""
        if self.operation is Operation.CREATE_CONNECTOR:
            name = _name_in_body(await bodies.read_body(request))
            if name is not None:
                self.targets["connector"] = name

    def write(self, request: Request, response: Response) -> None:
        """Write the line for the ``response``; none if another worker has performed the request."""
        context = context_of(request)
        if context.is_forwarded:
            return
        caller = context.caller
        line: dict[str, Any] = {
            "user": None if caller is None else caller.user,
            "address": client_address(request) if caller is None else caller.address,
            "operation": self.operation.value,
            **self.targets,
        }
        body = _json_body(response)
        if context.replaced_config is not None:
            line["before"] = masked_config(context.replaced_config)
        if self.operation in _CONFIG_OPERATIONS and response.status_code < 400 and "config" in body:
            line["after"] = masked_config(body["config"])
        line["status"] = response.status_code
        if response.status_code >= 400:
            # Only the first line: the further lines of an invalid config quote its values.
            line["message"] = str(body.get("message", "")).partition("\n")[0]
        logger.info("%s", json.dumps(line, ensure_ascii=False))


def keep_replaced_config(request: Request, answer: Answer) -> None:
    """Keep the config that the write of ``request`` has replaced, by the herder's ``answer``, for its audit line."""
    if isinstance(answer, WrittenConnector | DeletedConnector):
        context_of(request).replaced_config = answer.replaced_config


def _name_in_body(body: bytes) -> str | None:
    """The connector's name in the body of a creation; None when the body has none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name = document.get("name") if isinstance(document, dict) else None
    return name if isinstance(name, str) else None


def _json_body(response: Response) -> Mapping[str, Any]:
    """The JSON object in the body of ``response``; empty when there is none."""
    try:
        document = json.loads(bytes(response.body))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
