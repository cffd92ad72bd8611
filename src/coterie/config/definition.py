"""Definitions of configuration keys, and the check of a config against its definition (Connect's ConfigDef)."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar

from coterie.nouns.errors import ConfigError

T = TypeVar("T")


class Type(StrEnum):
    """Connect's types of config values; a config contains all values as strings."""

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


class Width(StrEnum):
    """The width of a form's field for a value, with Connect's names."""

    NONE = "NONE"
    SHORT = "SHORT"
    MEDIUM = "MEDIUM"
    LONG = "LONG"


@dataclass(frozen=True, slots=True)
class Secret:
    """A value of type PASSWORD. ``repr`` and ``str`` hide it; ``text`` contains it."""

    text: str = field(repr=False)

    def __repr__(self) -> str:
        return "[hidden]"


Value: TypeAlias = bool | int | float | str | tuple[str, ...] | Secret
"""A value by its type: LIST is a tuple, PASSWORD a :class:`Secret`; STRING and CLASS stay text."""

Check = Callable[[str], str | None]
"""Checks a value that is present, well-typed and trimmed; returns one sentence when the value is invalid, else None."""

_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")
"""At most 40 digits: more than any valid number has, and far below 4,300 digits, Python's limit for ``int(text)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a config, with the fields of Connect's ConfigDef. A key without a ``default`` is required unless it is
    ``optional``. The fields from ``group`` on are for forms; a key that is in no form has the defaults of these
    fields."""

    name: str
    type: Type
    documentation: str
    default: str | None = None
    optional: bool = False
    importance: Importance = Importance.MEDIUM
    check: Check | None = None
    group: str | None = None
    """The heading under which a form shows the key."""
    order: int = -1
    """The position within the group, from 0."""
    width: Width = Width.NONE
    display_name: str = ""
    """The label of the form's field; empty means ``name``."""
    dependents: tuple[str, ...] = ()
    """Keys whose values are valid or invalid depending on this key's value."""
    essence: Callable[[str], str] | None = None
    """Converts a valid value to its canonical text: two spellings of one value give the same text. None: the value is
    its own canonical text."""
    may_hold_password: bool = False
    """Whether errors hide the value although its type is not PASSWORD, because it may contain a password (a URL)."""

    @property
    def required(self) -> bool:
        return self.default is None and not self.optional

    @property
    def recommended_values(self) -> tuple[str, ...]:
        """The only valid values, sorted; empty when the key has no such list."""
        return self.check.values if isinstance(self.check, OneOf) else ()

    def essential(self, value: str) -> str:
        """The canonical text of ``value``, so that two spellings of the same value compare equal. It is computed from
        the text alone, without a request to any server."""
        if self.type is Type.LIST:
            return ",".join(as_list(value))
        if self.essence is None or self.error(value) is not None:
            return value.strip()
        return self.essence(value.strip())

    def error(self, value: str | None) -> str | None:
        """One sentence when ``value`` (None: neither given nor defaulted) is not valid for this key."""
        if value is None:
            missing = f'Missing required configuration "{self.name}" which has no default value.'
            return missing if self.required else None
        sentence = mistyped(self.type, value) or (self.check(value.strip()) if self.check else None)
        shown = Secret(value) if self.type is Type.PASSWORD or self.may_hold_password else value
        return None if sentence is None else f"Invalid value {shown} for configuration {self.name}: {sentence}"


@dataclass(frozen=True, slots=True)
class Definition:
    """The keys of one configurable object (for example a connector class), in the order of the form."""

    keys: tuple[Key, ...]

    def __add__(self, other: "Definition") -> "Definition":
        return Definition(self.keys + other.keys)

    def __getitem__(self, name: str) -> Key:
        """:raises KeyError: when no key has this name."""
        for key in self.keys:
            if key.name == name:
                return key
        raise KeyError(name)

    def errors(self, config: Mapping[str, str]) -> dict[str, list[str]]:
        """The errors of ``config`` by key, for the keys of this definition; keys of other definitions are ignored."""
        found = {key.name: key.error(config.get(key.name, key.default)) for key in self.keys}
        return {name: [sentence] for name, sentence in found.items() if sentence is not None}

    def value(self, config: Mapping[str, str], name: str) -> str | None:
        """The text of key ``name``, or its default."""
        return config.get(name, self[name].default)

    def find(self, config: Mapping[str, str], name: str, type_: type[T]) -> T | None:
        """The value of key ``name``, or its default, as a ``type_``; None for an optional key that is not set.

        :raises ConfigError: when the value is not valid, or a required one is missing.
        """
        key, text = self[name], self.value(config, name)
        if (sentence := key.error(text)) is not None:
            raise ConfigError({name: [sentence]})
        if text is None:
            return None
        value = parsed(key.type, text)
        assert isinstance(value, type_), f"{name} is of type {key.type}"
        return value

    def read(self, config: Mapping[str, str], name: str, type_: type[T]) -> T:
        """Like :meth:`find`, for a key that always has a value, because it is required or has a default."""
        value = self.find(config, name, type_)
        assert value is not None, f"{name} is optional"
        return value


def mistyped(type_: Type, value: str) -> str | None:
    """One sentence when ``value`` is not of ``type_``."""
    match type_:
        case Type.SHORT | Type.INT | Type.LONG:
            bound = 1 << (_BITS[type_] - 1)
            # int() alone would also accept 1_000, and digits of any script.
            is_one = _WHOLE_NUMBER.fullmatch(value.strip()) and -bound <= int(value) < bound
            return None if is_one else "Not a number of type " + type_.value
        case Type.DOUBLE:
            return None if _parses(float, value) else "Not a number of type DOUBLE"
        case Type.BOOLEAN:
            return None if value.strip().lower() in ("true", "false") else "Expected value to be either true or false"
        case Type.STRING | Type.LIST | Type.CLASS | Type.PASSWORD:
            return None


def parsed(type_: Type, text: str) -> Value:
    """``text`` as a value of ``type_``; the caller has checked ``text`` with :func:`mistyped`."""
    match type_:
        case Type.SHORT | Type.INT | Type.LONG:
            return int(text)
        case Type.DOUBLE:
            return float(text)
        case Type.BOOLEAN:
            return text.strip().lower() == "true"
        case Type.LIST:
            return tuple(as_list(text))
        case Type.PASSWORD:
            return Secret(text)
        case Type.STRING | Type.CLASS:
            return text.strip()


def as_list(value: str) -> list[str]:
    """A LIST value: items between commas, trimmed; blank means none."""
    return [item.strip() for item in value.split(",")] if value.strip() else []


# -- checks -----------------------------------------------------------------------------------------------------------


def at_least(minimum: int) -> Check:
    return lambda value: None if float(value) >= minimum else f"Value must be at least {minimum}"


def between(minimum: int, maximum: int) -> Check:
    """The value must be at least ``minimum`` and at most ``maximum``."""
    return lambda value: (
        at_least(minimum)(value) or (None if float(value) <= maximum else f"Value must be no more than {maximum}")
    )


@dataclass(frozen=True, slots=True)
class OneOf:
    """A check that accepts only ``values``; forms recommend the same values."""

    values: tuple[str, ...]
    refusal: str

    def __call__(self, value: str) -> str | None:
        return None if value in self.values else f"{self.refusal}: {', '.join(self.values)}"


def one_of(values: Iterable[str], refusal: str = "String must be one of") -> OneOf:
    return OneOf(tuple(sorted(values)), refusal)


def not_blank(value: str) -> str | None:
    return None if value.strip() else "String must be non-empty"


def _parses(number: Callable[[str], object], value: str) -> bool:
    try:
        number(value)
    except ValueError:
        return False
    return True
