"""Kafka's messages by API key and version: the only module that uses kio's index.

A schema is kio's entity class of one version of one message. A lookup in kio's index resolves a module by its name and
takes a tenth of the time of a heartbeat, so every schema found is cached.
"""

from collections.abc import Callable
from functools import cache
from types import NoneType
from typing import Any, get_args

from kio.index import KioIndexError, load_request_schema, load_response_schema

from coterie.nouns.errors import WireError

SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36


class UnknownApiError(WireError):
    """kio has no such API, or no such version of it."""


@cache
def request_schema(api_key: int, api_version: int) -> type[Any]:
    """:raises UnknownApiError: when there is no such API or version."""
    return _found(load_request_schema, api_key, api_version)


@cache
def response_schema(api_key: int, api_version: int) -> type[Any]:
    """:raises UnknownApiError: when there is no such API or version."""
    return _found(load_response_schema, api_key, api_version)


def _found(load: Callable[[int, int], type[Any]], api_key: int, api_version: int) -> type[Any]:
    try:
        return load(api_key, api_version)
    except KioIndexError as error:
        raise UnknownApiError(f"no API {api_key} of version {api_version}") from error


def is_nullable(type_: Any) -> bool:
    """Whether a schema's field of this type may be null."""
    return NoneType in get_args(type_)


def not_none(type_: Any) -> Any:
    """``X`` of ``X | None``; any other type itself."""
    return next(arg for arg in get_args(type_) if arg is not NoneType) if is_nullable(type_) else type_


def header_version(schema: type[Any]) -> int:
    """The version of the header before the message, which kio states for each schema; 0 for ApiVersions responses."""
    return int(schema.__header_schema__.__version__)
