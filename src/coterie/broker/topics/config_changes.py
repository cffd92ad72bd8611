"""Applies a client's config changes to the configs of a resource (KIP-339). The result is not validated here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from coterie.config.definition import ConfigDef, Type, split_list
from coterie.wire.errors import ErrorCode, KafkaRefusal


class ConfigOperation(IntEnum):
    """The operations on a config key, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A client's change of one key. ``operation`` is the number that the client sent, which may not be a valid
    :class:`ConfigOperation`."""

    name: str
    operation: int
    value: str | None
    """The new value, or the items to append or subtract; None for DELETE."""


def apply_changes(definition: ConfigDef, own: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return a copy of ``own``, the configs that are set on the resource, with the changes applied. A key that
    ``definition`` does not have may be set and deleted. APPEND and SUBTRACT on a key that is not set begin with its
    default.

    :raises KafkaRefusal: a key occurs twice, a value is missing for another operation than DELETE, an operation is
        unknown, or items are to be appended to or subtracted from a key that is not a list.
    """
    check_unique_names(change.name for change in changes)
    types = {key.name: key.type for key in definition.keys}
    configs = dict(own)
    for change in changes:
        if change.operation == ConfigOperation.DELETE:
            configs.pop(change.name, None)
            continue
        value = require_value(change.name, change.value)
        if change.operation == ConfigOperation.SET:
            configs[change.name] = value
        elif change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            if types.get(change.name) is not Type.LIST:
                operation = ConfigOperation(change.operation).name
                error_message = f"Can't {operation} to key {change.name} because its type is not LIST."
                raise KafkaRefusal(ErrorCode.invalid_config, error_message)
            before = split_list(definition.value_text_or_default(configs, change.name) or "")
            configs[change.name] = ",".join(
                _list_with_change(before, split_list(value), ConfigOperation(change.operation))
            )
        else:
            raise KafkaRefusal(ErrorCode.invalid_request, f"Unknown config operation: {change.operation}")
    return configs


def check_unique_names(names: Iterable[str]) -> None:
    """Check that no config key occurs twice in ``names``.

    :raises KafkaRefusal: a config key occurs twice.
    """
    names = list(names)
    if len(names) != len({*names}):
        raise KafkaRefusal(ErrorCode.invalid_request, "Error due to duplicate config keys")


def require_value(name: str, value: str | None) -> str:
    """Return ``value``, the value of the config key ``name``.

    :raises KafkaRefusal: the value is None.
    """
    if value is None:
        raise KafkaRefusal(ErrorCode.invalid_request, f"Null value not supported for : {name}")
    return value


def _list_with_change(before: list[str], items: list[str], operation: ConfigOperation) -> list[str]:
    """The items ``before`` without ``items`` for SUBTRACT; for APPEND, the items ``before`` and then those of ``items``
    that are new."""
    if operation is ConfigOperation.SUBTRACT:
        return [item for item in before if item not in items]
    return list(dict.fromkeys([*before, *items]))
