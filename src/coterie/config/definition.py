"""What a configuration key is, and how a whole config is checked against its definition (Connect's ConfigDef)."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """Connect's types of values; all travel as strings."""

    BOOLEAN = "BOOLEAN"
    CLASS = "CLASS"
    DOUBLE = "DOUBLE"
    INT = "INT"
    LIST = "LIST"
    LONG = "LONG"
    PASSWORD = "PASSWORD"
    SHORT = "SHORT"
    STRING = "STRING"


class Importance(StrEnum):
    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


Check = Callable[[str], str | None]
"""Looks at a value that is present, well-typed and trimmed; returns one sentence when it is wrong."""

_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")
"""More than any number has, and few enough for whoever reads it: of 4,300 digits Python makes no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a config. Without a ``default`` it is required unless ``optional``."""

    name: str
    type: Type
    documentation: str
    default: str | None = None
    optional: bool = False
    importance: Importance = Importance.MEDIUM
    check: Check | None = None

    @property
    def required(self) -> bool:
        return self.default is None and not self.optional


@dataclass(frozen=True, slots=True)
class Definition:
    """The keys of one thing that can be configured, in the order in which they are shown."""

    keys: tuple[Key, ...]

    def __add__(self, other: "Definition") -> "Definition":
        return Definition(self.keys + other.keys)

    def errors(self, config: Mapping[str, str]) -> dict[str, list[str]]:
        """What is wrong, by key, for the keys of this definition; other keys are nobody's business here."""
        found: dict[str, list[str]] = {}
        for key in self.keys:
            value = config.get(key.name, key.default)
            if value is None:
                if key.required:
                    found[key.name] = [f'Missing required configuration "{key.name}" which has no default value.']
                continue
            sentence = mistyped(key.type, value) or (key.check(value.strip()) if key.check else None)
            if sentence is not None:
                found[key.name] = [f"Invalid value {value} for configuration {key.name}: {sentence}"]
        return found

    def value(self, config: Mapping[str, str], name: str) -> str | None:
        """The value of key ``name``, or its default."""
        return config.get(name, next(key.default for key in self.keys if key.name == name))


def mistyped(type_: Type, value: str) -> str | None:
    """One sentence when ``value`` is not of ``type_``."""
    match type_:
        case Type.SHORT | Type.INT | Type.LONG:
            bound = 1 << (_BITS[type_] - 1)
            # Python's own reading would take 1_000, too, and digits of any script.
            is_one = _WHOLE_NUMBER.fullmatch(value.strip()) and -bound <= int(value) < bound
            return None if is_one else "Not a number of type " + type_.value
        case Type.DOUBLE:
            return None if _parses(float, value) else "Not a number of type DOUBLE"
        case Type.BOOLEAN:
            return None if value.strip().lower() in ("true", "false") else "Expected value to be either true or false"
        case Type.STRING | Type.LIST | Type.CLASS | Type.PASSWORD:
            return None


def as_list(value: str) -> list[str]:
    """A LIST value: items between commas, trimmed; blank means none."""
    return [item.strip() for item in value.split(",")] if value.strip() else []


# -- checks -----------------------------------------------------------------------------------------------------------


def at_least(minimum: int) -> Check:
    return lambda value: None if float(value) >= minimum else f"Value must be at least {minimum}"


def between(minimum: int, maximum: int) -> Check:
    """Both may be."""
    return lambda value: (
        at_least(minimum)(value) or (None if float(value) <= maximum else f"Value must be no more than {maximum}")
    )


def one_of(values: Iterable[str]) -> Check:
    allowed = sorted(values)
    return lambda value: None if value in allowed else f"String must be one of: {', '.join(allowed)}"


def not_blank(value: str) -> str | None:
    return None if value.strip() else "String must be non-empty"


def _parses(number: Callable[[str], object], value: str) -> bool:
    try:
        number(value)
    except ValueError:
        return False
    return True
