"""Between kio's entities, one class a version, and values that know no version.

A handler says everything that the newest version can say, in plain mappings; :func:`build` keeps what the asked
version has a place for. Durations are int milliseconds on our side and `timedelta` on kio's.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin

from coterie.wire.schemas import is_nullable, not_none, request_schema, response_schema

Values = Mapping[str, Any]
"""Values by kio's field name; a struct is again such a mapping, an array a sequence."""


def build_response(api_key: int, version: int, values: Values) -> Any:
    """Kio's response entity of ``version``; fields it does not know are dropped, fields not given take defaults."""
    return build(response_schema(api_key, version), values)


def build_request(api_key: int, version: int, values: Values) -> Any:
    """Kio's request entity of ``version``, likewise."""
    return build(request_schema(api_key, version), values)


def build(schema: Any, values: Values) -> Any:
    """An entity of ``schema``.

    :raises TypeError: when a field without default is missing: our own bug.
    """
    return schema(**{name: convert(values[name]) for name, convert in _converters(schema) if name in values})


def milliseconds(duration: timedelta) -> int:
    """Kio's duration as int milliseconds."""
    return round(duration / timedelta(milliseconds=1))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def _converters(schema: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, _converter(field.type, field.metadata.get("kafka_type"))) for field in fields(schema))


def _converter(type_: Any, kafka_type: str | None) -> Any:
    inner = not_none(type_)
    if get_origin(inner) is tuple:
        element = _converter(get_args(inner)[0], kafka_type)
        return lambda values: None if values is None else tuple(element(value) for value in values)
    if is_dataclass(inner):
        return lambda values: None if values is None else build(inner, values)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return lambda value_ms: timedelta(milliseconds=value_ms)
    if kafka_type == "datetime_i64":
        # Where there may be none kio writes -1 for it; elsewhere -1 is said as the time that it is.
        may_be_none = is_nullable(type_)
        return lambda value_ms: None if may_be_none and value_ms < 0 else _EPOCH + timedelta(milliseconds=value_ms)
    return lambda value: value
