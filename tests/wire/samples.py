"""Random messages of any kind and version, generated from kio's schemas."""

import random
import uuid
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin

from coterie.wire.errors import ErrorCode

_BITS = {
    "int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 63,
}  # fmt: skip
_WORDS = ("", "a", "topic", "group-1", "ünï", "x" * 40)


def sample(schema: Any, rng: random.Random, *, nulls: float = 0.2) -> Any:
    """An entity of kio's ``schema``; a nullable field is null with the probability ``nulls``."""
    return schema(**{field.name: _value(field, rng, nulls) for field in fields(schema)})


def _value(field: Field[Any], rng: random.Random, nulls: float) -> Any:
    type_ = field.type
    if NoneType in get_args(type_):
        if rng.random() < nulls:
            return None
        type_ = next(arg for arg in get_args(type_) if arg is not NoneType)
    # A tagged field is encoded only if it differs from its default.
    if "tag" in field.metadata and field.default is not MISSING and rng.random() < 0.5:
        return field.default
    if get_origin(type_) is tuple:
        element = get_args(type_)[0]
        return tuple(_one(element, field, rng, nulls) for _ in range(rng.choice((1, 1, 2, 3))))
    return _one(type_, field, rng, nulls)


def _one(type_: Any, field: Field[Any], rng: random.Random, nulls: float) -> Any:
    if is_dataclass(type_):
        return sample(type_, rng, nulls=nulls)
    kafka_type = field.metadata["kafka_type"]
    match kafka_type:
        case "string":
            return rng.choice(_WORDS)
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 7, 61, 200)))
        case "bool":
            return rng.random() < 0.5
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128) or 1)
        case "float64":
            return rng.random()
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=rng.randrange(0, 60_000))
        case "datetime_i64":
            return datetime.fromtimestamp(rng.randrange(0, 2_000_000_000), UTC)
        case _:
            small = rng.random() < 0.7
            return rng.randrange(0, 3) if small else rng.getrandbits(_BITS[kafka_type])
