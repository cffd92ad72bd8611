"""Definitions of configuration keys, and the check of a config against its definition (Connect's ConfigDef)."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar

from coterie.nouns.errors import ConfigError, invalid_value_message

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
    """The importance of a key, with Connect's names."""

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


ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...] | Secret
"""The parsed value of a key, by the key's type: a LIST is a tuple, a PASSWORD a :class:`Secret`; STRING and CLASS stay
text."""

Validator = Callable[[str], str | None]
"""Checks a value that is present, of the right type and trimmed. Returns one sentence when the value is invalid, else
None."""

_BIT_COUNT_BY_INTEGER_TYPE = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
"""The number of bits of the whole-number types."""
_WHOLE_NUMBER_PATTERN = re.compile(r"[+-]?[0-9]{1,40}")
"""A whole number of at most 40 digits: more than any valid number has, and far below 4,300 digits, Python's limit for
``int(text)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of a config, with the fields of Connect's ConfigDef. A key without a ``default`` is required unless it is
    ``is_optional``. The fields from ``group`` to ``dependents`` are for forms; a key that is in no form has the
    defaults of these fields. As in Connect, some messages name a key without the prefix of its converter, transform or
    predicate: those about the type of a value use ``name_in_type_errors``, those of the validator use
    ``name_in_validator_errors``."""

    name: str
    type: Type
    documentation: str
    default: str | None = None
    """The text of the default; None: there is none."""
    is_optional: bool = False
    importance: Importance = Importance.MEDIUM
    validator: Validator | None = None
    """The check of a value of the right type; None: every such value is valid."""
    group: str | None = None
    """The heading under which a form shows the key."""
    order: int = -1
    """The position within the group, from 0."""
    width: Width = Width.NONE
    display_name: str = ""
    """The label of the form's field; empty means ``name``."""
    dependents: tuple[str, ...] = ()
    """The keys whose validity may change when this key's value changes."""
    normalizer_for_comparison: Callable[[str], str] | None = None
    """Converts a valid value to its canonical text, with which values are compared: two spellings of one value give the
    same text. Checks and uses of a value take the unconverted text. None: the value is its own canonical text."""
    name_in_type_errors: str = ""
    """The name in messages about a value of another type; empty means ``name``. As in Connect, such messages about a
    key of a converter have the key without its prefix."""
    name_in_validator_errors: str = ""
    """The name in the messages of the validator; empty means ``name``. As in Connect, such messages about a key of a
    transform, predicate or converter have the key without its prefix."""
    is_value_hidden_in_errors: bool = False
    """Whether error messages hide the value although its type is not PASSWORD, because the value may contain a
    password, as a URL may."""

    @property
    def is_required(self) -> bool:
        """Whether a config must contain the key."""
        return self.default is None and not self.is_optional

    @property
    def recommended_values(self) -> tuple[str, ...]:
        """The values among which a form lets the user choose, sorted; empty when the key has no list of valid values.
        No others are valid, except further names of the same plug-ins
        (:attr:`OneOfPluginClasses.also_accepted_names`)."""
        return tuple(sorted(self.validator.values)) if isinstance(self.validator, OneOf | OneOfPluginClasses) else ()

    def normalized_value(self, value: str) -> str:
        """The canonical text of ``value``: two spellings of the same value give the same text. It is computed from the
        text alone, without a request to any server. An invalid value is only trimmed; but the items of a LIST are
        always normalized."""
        if self.type is Type.LIST:
            return ",".join(split_list(value))
        if self.normalizer_for_comparison is None or self.value_error(value) is not None:
            return value.strip()
        return self.normalizer_for_comparison(value.strip())

    def value_error(self, value: str | None) -> str | None:
        """An error message when ``value`` is not valid for this key, else None. ``value`` None: the config does not
        contain the key, and the key has no default."""
        if value is None:
            missing_error = f'Missing required configuration "{self.name}" which has no default value.'
            return missing_error if self.is_required else None
        name, reason = self.name_in_type_errors or self.name, type_error(self.type, value)
        if reason is None and self.validator is not None:
            name, reason = self.name_in_validator_errors or self.name, self.validator(value.strip())
        shown_value = Secret(value) if self.type is Type.PASSWORD or self.is_value_hidden_in_errors else value
        if self.type is Type.LIST:
            shown_value = f"[{', '.join(split_list(value))}]"  # As Java writes a list.
        return None if reason is None else invalid_value_message(name, shown_value, reason)

    def value_errors(self, value: str | None) -> list[str]:
        """All error messages about ``value``; empty when it is valid. None has the same meaning as in
        :meth:`value_error`.

        A value that is not of the key's type gets a second message if the validator is a :class:`Range`: as in Connect,
        the range receives a null in place of the value, and rejects the null. Other validators add no message.
        """
        message = self.value_error(value)
        if message is None:
            return []
        is_null = value is not None and type_error(self.type, value) is not None
        return [message, *(self.validator_errors_for_null if is_null else ())]

    @property
    def validator_errors_for_null(self) -> tuple[str, ...]:
        """The messages with which the key's validator rejects a null in a JSON config; empty if the validator accepts a
        null. The message about a null for any key, :data:`.NULL_VALUE_ERROR`, is not among them."""
        if not isinstance(self.validator, Range):
            return ()
        name = self.name_in_validator_errors or self.name
        return (invalid_value_message(name, "null", "Value must be non-null"),)

    def shown_value(self, value: str | None) -> str | None:
        """``value`` as Connect returns it in the result of a validation: ``[hidden]`` for a password, else the parsed
        value as text. None when the value is None or is not of the key's type; for a class, also when there is no class
        with this name."""
        if value is None or type_error(self.type, value) is not None:
            return None
        if isinstance(self.validator, OneOfPluginClasses) and self.validator(value.strip()) is not None:
            return None
        parsed = parse_checked_value(self.type, value)
        match parsed:
            case bool():
                return str(parsed).lower()
            case tuple():
                return ",".join(parsed)
            case _:
                return str(parsed)


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """The keys of one configurable object (for example a connector class), in the order of the form."""

    keys: tuple[ConfigKey, ...]

    def __add__(self, other: "ConfigDef") -> "ConfigDef":
        """A definition with the keys of this definition, then those of ``other``."""
        return ConfigDef(self.keys + other.keys)

    def __getitem__(self, name: str) -> ConfigKey:
        """The key ``name``; the first one if there are several.

        :raises KeyError: when no key has this name.
        """
        for key in self.keys:
            if key.name == name:
                return key
        raise KeyError(name)

    def errors(self, config: Mapping[str, str]) -> dict[str, list[str]]:
        """The error messages about ``config``, by key. A key without errors is not in the result. Keys of ``config``
        that are not in this definition are ignored."""
        errors_by_name = {key.name: key.value_errors(config.get(key.name, key.default)) for key in self.keys}
        return {name: messages for name, messages in errors_by_name.items() if messages}

    def value_text_or_default(self, config: Mapping[str, str], name: str) -> str | None:
        """The text of key ``name`` in ``config``, unparsed and unchecked, or the key's default. None when the config
        does not contain the key and the key has no default.

        :raises KeyError: when no key has this name.
        """
        return config.get(name, self[name].default)

    def optional_value(self, config: Mapping[str, str], name: str, type_: type[T]) -> T | None:
        """The parsed value of key ``name`` in ``config``, or of the key's default, as a ``type_``; None when an
        optional key is not set.

        :raises ConfigError: when the value is not valid, or a required value is missing.
        :raises KeyError: when no key has this name.
        """
        key, text = self[name], self.value_text_or_default(config, name)
        if (message := key.value_error(text)) is not None:
            raise ConfigError({name: [message]})
        if text is None:
            return None
        value = parse_checked_value(key.type, text)
        assert isinstance(value, type_), f"{name} is of type {key.type}"
        return value

    def required_value(self, config: Mapping[str, str], name: str, type_: type[T]) -> T:
        """The parsed value of key ``name`` like :meth:`optional_value`, for a key that always has a value because it is
        required or has a default.

        :raises ConfigError: when the value is not valid or missing.
        :raises KeyError: when no key has this name.
        """
        value = self.optional_value(config, name, type_)
        assert value is not None, f"{name} is optional"
        return value


def type_error(type_: Type, value: str) -> str | None:
    """One sentence when the text ``value`` cannot be parsed as ``type_``, else None."""
    match type_:
        case Type.SHORT | Type.INT | Type.LONG:
            bound = 1 << (_BIT_COUNT_BY_INTEGER_TYPE[type_] - 1)
            # int() alone would also accept 1_000, and digits of any script.
            is_valid = _WHOLE_NUMBER_PATTERN.fullmatch(value.strip()) and -bound <= int(value) < bound
            return None if is_valid else "Not a number of type " + type_.value
        case Type.DOUBLE:
            return None if _is_convertible(float, value) else "Not a number of type DOUBLE"
        case Type.BOOLEAN:
            return None if value.strip().lower() in ("true", "false") else "Expected value to be either true or false"
        case Type.STRING | Type.LIST | Type.CLASS | Type.PASSWORD:
            return None


def parse_checked_value(type_: Type, text: str) -> ConfigValue:
    """``text`` as a value of ``type_``. The caller has checked ``text`` with :func:`type_error`.

    :raises ValueError: when ``type_`` is a type of numbers and ``text`` is not a number.
    """
    match type_:
        case Type.SHORT | Type.INT | Type.LONG:
            return int(text)
        case Type.DOUBLE:
            return float(text)
        case Type.BOOLEAN:
            return text.strip().lower() == "true"
        case Type.LIST:
            return tuple(split_list(text))
        case Type.PASSWORD:
            return Secret(text)
        case Type.STRING | Type.CLASS:
            return text.strip()


def split_list(value: str) -> list[str]:
    """The items of a LIST value: the texts between commas, trimmed. A blank value has no items; an item may be
    empty."""
    return [item.strip() for item in value.split(",")] if value.strip() else []


# -- checks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """A validator that accepts numbers from ``minimum`` to ``maximum``, both included. ``maximum`` None: no limit."""

    minimum: int
    maximum: int | None = None

    def __call__(self, value: str) -> str | None:
        if float(value) < self.minimum:
            return f"Value must be at least {self.minimum}"
        if self.maximum is not None and float(value) > self.maximum:
            return f"Value must be no more than {self.maximum}"
        return None


def at_least(minimum: int) -> Validator:
    """A validator that accepts numbers that are at least ``minimum``."""
    return Range(minimum)


def between(minimum: int, maximum: int) -> Validator:
    """A validator that accepts numbers from ``minimum`` to ``maximum``, both included."""
    return Range(minimum, maximum)


@dataclass(frozen=True, slots=True)
class OneOf:
    """A validator that accepts only ``values``; forms recommend the same values."""

    values: tuple[str, ...]
    error_prefix: str
    """The beginning of the error message, before the list of the values."""

    def __call__(self, value: str) -> str | None:
        return None if value in self.values else f"{self.error_prefix}: {', '.join(self.values)}"


@dataclass(frozen=True, slots=True)
class OneOfPluginClasses:
    """A validator that accepts the names of plug-ins of one type; forms recommend :attr:`values`. The message about
    another name is Connect's, which does not list the names."""

    values: tuple[str, ...]
    interface_name: str
    """The name of Connect's interface for this type of plug-in, for error messages."""
    also_accepted_names: frozenset[str] = frozenset()
    """Further names that are accepted, such as names without the package."""

    def __call__(self, value: str) -> str | None:
        if value in self.values or value in self.also_accepted_names:
            return None
        return f"Class {value} could not be found."


def one_of(values: Iterable[str], error_prefix: str = "String must be one of") -> OneOf:
    """A validator that accepts only ``values``. Its error message is ``error_prefix``, a colon, and ``values`` in the
    given order; for a key that Kafka has too, give them in Kafka's order."""
    return OneOf(tuple(values), error_prefix)


def blank_value_error(value: str) -> str | None:
    """A validator: the error message when ``value`` is blank, else None."""
    return None if value.strip() else "String must be non-empty"


def _is_convertible(convert: Callable[[str], object], value: str) -> bool:
    """Whether ``convert`` accepts ``value`` without a ValueError."""
    try:
        convert(value)
    except ValueError:
        return False
    return True
