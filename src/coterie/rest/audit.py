"""The audit log: one line for each request that would change something, written by the worker that performs or refuses
the request. Logger ``coterie.audit``, level INFO; the line is JSON.

    {"user": "alice", "address": "10.0.0.7", "operation": "put_config", "connector": "flights",
     "before": {…}, "after": {…}, "status": 200}

``before`` is the config that the write has replaced. ``after`` is what the request has set: a config (and the initial
state and offsets of a creation), offsets (null for a reset), or the level of a logger. Secret values are hidden. A
refused request has a ``message`` with the first line of the reason (of an invalid config, the number of errors: the
further lines quote its values), and neither ``before`` nor ``after``.

A worker that has forwarded the request and returns the other worker's response writes no line if that response has
the header :data:`AUDITED_HEADER`: the other worker has then written the line. The response of a Kafka Connect worker
has no such header.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import Response

from coterie.config.secrets import masked_config
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.writes import DeletedConnector, WrittenConnector
from coterie.rest import bodies
from coterie.rest.callers import client_address_or_unknown
from coterie.rest.endpoints import Endpoint, Operation
from coterie.rest.leader import AUDITED_HEADER, FORWARD_PARAMETER
from coterie.rest.problems import UnreadableBodyError
from coterie.rest.request_context import context_of
from coterie.rest.request_parameters import query_value

logger = logging.getLogger("coterie.audit")

_CONFIG_OPERATIONS = frozenset(
    {Operation.CREATE_CONNECTOR, Operation.PUT_CONFIG, Operation.PATCH_CONFIG, Operation.DELETE_CONNECTOR}
)
"""The operations that change a connector's config: their audit lines contain the config before and after the change."""
_AUDITED_BODY_FIELDS_BY_OPERATION = {
    Operation.CREATE_CONNECTOR: ("initial_state", "initial_offsets"),
    Operation.CHANGE_OFFSETS: ("offsets",),
    Operation.SET_LOGGER_LEVEL: ("level",),
}
"""The fields of the request's body that contain what the request sets, for a creation beside the config."""


@dataclass(slots=True, kw_only=True)
class AuditLine:
    """The audit line of one request."""

    operation: Operation
    parameters: dict[str, str]
    """The parameters in the path and the query: ``connector``, ``task``, ``worker``, ``includeTasks``, …"""
    requested_values: dict[str, Any] = field(default_factory=dict)
    """The fields of the request's body that contain what the request sets, without secret values."""

    @classmethod
    def from_request(cls, request: Request, endpoint: Endpoint) -> Self:
        """The audit line of ``request``, which is for ``endpoint``; :meth:`read_body` adds what the request's body
        sets."""
        values = {name: query_value(request, name) for name in endpoint.type_by_query_parameter}
        in_query = {name: value for name, value in values.items() if value is not None}
        return cls(operation=endpoint.operation, parameters={**request.path_params, **in_query})

    async def read_body(self, request: Request) -> None:
        """Read :attr:`requested_values` from the body of ``request``. For the creation of a connector, also add the
        connector's name to :attr:`parameters`: the name is in the body, and not in the path as for other operations.
        Does nothing for an operation whose line contains no field of the body."""
        fields = _AUDITED_BODY_FIELDS_BY_OPERATION.get(self.operation)
        if fields is None:
            return
        body = await bodies.parse_on_thread_if_large(_masked_json_object_or_empty, await bodies.read_body(request))
        self.requested_values = {name: body[name] for name in fields if name in body}
        if self.operation is Operation.CREATE_CONNECTOR:
            with suppress(UnreadableBodyError):  # The handler refuses such a body.
                if name := bodies.name_of_new_connector(body.get("name")):
                    self.parameters["connector"] = name

    def write_unless_other_worker_wrote(self, request: Request, response: Response) -> None:
        """Write the audit line of ``request``, to which ``response`` is sent. Writes no line if ``response`` is that of
        another worker, to which this worker has forwarded the request, and that worker has written the line. In both
        cases, note in the request's context that the line exists."""
        context = context_of(request)
        context.has_audit_line = True
        if AUDITED_HEADER in response.headers:
            return
        caller = context.caller
        line: dict[str, Any] = {
            "user": None if caller is None else caller.user,
            "address": client_address_or_unknown(request) if caller is None else caller.address,
            "operation": self.operation.value,
            **self.parameters,
        }
        body = _masked_json_object_or_empty(bytes(response.body))
        if context.config_before_request is not None:
            line["before"] = masked_config(context.config_before_request)
        if response.status_code < 400:
            line |= self._after_field_or_empty(body)
        line["status"] = response.status_code
        if response.status_code >= 400:
            line["message"] = _first_line(str(body.get("message", "")))
        logger.info("%s", json.dumps(line, ensure_ascii=False))

    def _after_field_or_empty(self, response_body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The field ``after`` of the line of a request that was performed; empty when the line has none."""
        if self.operation in _CONFIG_OPERATIONS and "config" in response_body:
            config = response_body["config"]  # Of another form than a config if another program leads the group.
            return {"after": {**config, **self.requested_values} if isinstance(config, dict) else config}
        if self.operation is Operation.RESET_OFFSETS:
            return {"after": None}
        if self.operation in _CONFIG_OPERATIONS or not self.requested_values:
            return {}
        return {"after": self.requested_values}


def _first_line(message: str) -> str:
    """The first line of ``message``, which contains the reason of a refusal. The further lines of an invalid config are
    left out: they quote its values. The first line then does not announce them."""
    first, newline, _ = message.partition("\n")
    if not newline or not first.endswith(":"):
        return first
    return f"{first.removesuffix(':').replace(' the following ', ' ')}; the response lists them"


def set_audited_header_only_if_forwarded(request: Request, response: Response) -> Response:
    """Return ``response``: with :data:`AUDITED_HEADER` if another worker has forwarded ``request`` and the audit log
    contains the line of the request, otherwise without this header. Every response must pass this function: ``access``
    calls it for the responses of handlers, ``app`` for those to exceptions."""
    if context_of(request).has_audit_line and FORWARD_PARAMETER in request.query_params:
        response.headers[AUDITED_HEADER] = "true"
    else:
        del response.headers[AUDITED_HEADER]
    return response


def keep_config_before_request_for_audit(request: Request, answer: Answer) -> None:
    """Keep the connector's config before the write of ``request``, for the audit line. The herder's ``answer`` contains
    this config if the write has changed or deleted a connector; for every other answer, nothing is kept."""
    if isinstance(answer, WrittenConnector | DeletedConnector):
        context_of(request).config_before_request = answer.replaced_config


def _masked_json_object_or_empty(body: bytes) -> Mapping[str, Any]:
    """The JSON object in ``body``, with :data:`.MASK` in place of each secret string value (:func:`masked_config`), at
    every depth; empty if ``body`` is not JSON or not an object."""
    try:
        document = json.loads(body, object_hook=_with_masked_secrets, parse_int=_int_or_text_if_too_long)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _int_or_text_if_too_long(text: str) -> int | str:
    """The number that ``text``, an integer in JSON, stands for; ``text`` itself if it has more digits than Python
    converts."""
    try:
        return int(text)
    except ValueError:
        return text


def _with_masked_secrets(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``fields`` of one JSON object with :data:`.MASK` in place of each string value that :func:`masked_config`
    takes for a secret. Values of other types stay; the parser calls this for each nested object."""
    return {**fields, **masked_config({key: value for key, value in fields.items() if isinstance(value, str)})}
