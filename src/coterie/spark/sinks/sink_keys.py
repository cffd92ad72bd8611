"""Helpers for the definitions of sinks' config keys."""

from coterie.config.definition import ConfigKey, Importance, Type, Validator, Width, split_list
from coterie.spark.paths import SINK_GROUP


def make_sink_config_key(
    name: str,
    type_: Type,
    documentation: str,
    label: str,
    *,
    default: str | None = None,
    is_optional: bool = False,
    importance: Importance = Importance.MEDIUM,
    validator: Validator | None = None,
) -> ConfigKey:
    """A config key of a sink, of medium width; forms show it as ``label``."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=documentation,
        default=default,
        is_optional=is_optional,
        importance=importance,
        validator=validator,
        group=SINK_GROUP,
        width=Width.MEDIUM,
        display_name=label,
    )


def column_names_error(value: str) -> str | None:
    """A validator: the error message for a list of column names; None when the list is valid or empty."""
    names = split_list(value)
    is_valid = all(names) and len(set(names)) == len(names)
    return None if is_valid else "Must be names of columns, separated by commas, each once"


def only_false_validator(error_message: str) -> Validator:
    """A validator that accepts only false; ``error_message`` is its message for every other value."""
    return lambda value: None if value.lower() == "false" else error_message
