"""Kafka's messages by API key and version: the only module that uses kio's index.

A schema is kio's entity class of one version of one message, or a class of `connect_group_messages`, which kio does not
have. A lookup in kio's index resolves a module by its name and takes a tenth of the time of a heartbeat, so every
schema found is cached.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, get_args

from kio.index import KioIndexError, load_request_schema, load_response_schema

from coterie.nouns.errors import WireError
from coterie.wire.connect_group_messages.describe import ConnectGroupDescribeRequest, ConnectGroupDescribeResponse
from coterie.wire.connect_group_messages.heartbeat import ConnectGroupHeartbeatRequest, ConnectGroupHeartbeatResponse
from coterie.wire.connect_group_messages.install_assignment import (
    ConnectGroupInstallAssignmentRequest,
    ConnectGroupInstallAssignmentResponse,
)
from coterie.wire.connect_group_messages.prepare_assignment import (
    ConnectGroupPrepareAssignmentRequest,
    ConnectGroupPrepareAssignmentResponse,
)

SASL_HANDSHAKE = 17
"""The API key of SaslHandshake."""
API_VERSIONS = 18
"""The API key of ApiVersions."""
SASL_AUTHENTICATE = 36
"""The API key of SaslAuthenticate."""
CONNECT_GROUP_HEARTBEAT = ConnectGroupHeartbeatRequest.__api_key__
"""The API key of ConnectGroupHeartbeat."""

_CONNECT_GROUP_REQUESTS: Mapping[tuple[int, int], type[Any]] = {
    (schema.__api_key__, schema.__version__): schema
    for schema in (
        ConnectGroupHeartbeatRequest,
        ConnectGroupPrepareAssignmentRequest,
        ConnectGroupInstallAssignmentRequest,
        ConnectGroupDescribeRequest,
    )
}
"""The requests of connect groups, by API key and version."""
_CONNECT_GROUP_RESPONSES: Mapping[tuple[int, int], type[Any]] = {
    (schema.__api_key__, schema.__version__): schema
    for schema in (
        ConnectGroupHeartbeatResponse,
        ConnectGroupPrepareAssignmentResponse,
        ConnectGroupInstallAssignmentResponse,
        ConnectGroupDescribeResponse,
    )
}
"""The responses of connect groups, by API key and version."""
CONNECT_GROUP_APIS = frozenset(key for key, _ in _CONNECT_GROUP_REQUESTS)
"""The API keys of connect groups. kio does not have them."""


class UnknownApiError(WireError):
    """A message has an API key that is not known, or a version that the API does not have."""


@cache
def request_schema(api_key: int, api_version: int) -> type[Any]:
    """The class of the requests of this API in this version.

    :raises UnknownApiError: when there is no such API or version.
    """
    return _CONNECT_GROUP_REQUESTS.get((api_key, api_version)) or _load_schema(
        load_request_schema, api_key, api_version
    )


@cache
def response_schema(api_key: int, api_version: int) -> type[Any]:
    """The class of the responses of this API in this version.

    :raises UnknownApiError: when there is no such API or version.
    """
    return _CONNECT_GROUP_RESPONSES.get((api_key, api_version)) or _load_schema(
        load_response_schema, api_key, api_version
    )


def _load_schema(load_from_index: Callable[[int, int], type[Any]], api_key: int, api_version: int) -> type[Any]:
    """The class that ``load_from_index``, a function of kio's index, returns.

    :raises UnknownApiError: when kio has no such API or version.
    """
    try:
        return load_from_index(api_key, api_version)
    except KioIndexError as error:
        raise UnknownApiError(f"API {api_key} does not exist, or has no version {api_version}") from error


def is_nullable(annotation: Any) -> bool:
    """Whether a field with the type annotation ``annotation`` may be null."""
    return NoneType in get_args(annotation)


def annotation_without_none(annotation: Any) -> Any:
    """The type ``X`` of the annotation ``X | None``; any other annotation unchanged."""
    return (
        next(argument for argument in get_args(annotation) if argument is not NoneType)
        if is_nullable(annotation)
        else annotation
    )


def header_version(schema: type[Any]) -> int:
    """The version of the header that precedes messages of ``schema``, as kio states it; 0 for ApiVersions responses."""
    return int(schema.__header_schema__.__version__)
