"""Applies a client's config changes to the configs of a resource (KIP-339). The result is not validated here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from coterie.config.definition import Definition, Type, as_list
from coterie.wire.errors import ErrorCode, KafkaRefusal


class ConfigOperation(IntEnum):
    """Operations on a config key, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """The change of one key; ``operation`` as received, which may not be a valid :class:`ConfigOperation`."""

    name: str
    operation: int
    value: str | None


def altered(definition: Definition, own: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return ``own`` with the changes applied; keys that ``definition`` does not have are not refused here.

    :raises KafkaRefusal: a change is invalid whatever the other configs are.
    """
    check_names(change.name for change in changes)
    types = {key.name: key.type for key in definition.keys}
    configs = dict(own)
    for change in changes:
        if change.operation == ConfigOperation.DELETE:
            configs.pop(change.name, None)
            continue
        value = given(change.name, change.value)
        if change.operation == ConfigOperation.SET:
            configs[change.name] = value
        elif change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            if types.get(change.name) is not Type.LIST:
                operation = ConfigOperation(change.operation).name
                sentence = f"Can't {operation} to key {change.name} because its type is not LIST."
                raise KafkaRefusal(ErrorCode.invalid_config, sentence)
            before = as_list(definition.value(configs, change.name) or "")
            configs[change.name] = ",".join(_joined(before, as_list(value), ConfigOperation(change.operation)))
        else:
            raise KafkaRefusal(ErrorCode.invalid_request, f"Unknown config operation: {change.operation}")
    return configs


def check_names(names: Iterable[str]) -> None:
    """:raises KafkaRefusal: a name occurs twice."""
    names = list(names)
    if len(names) != len({*names}):
        raise KafkaRefusal(ErrorCode.invalid_request, "Error due to duplicate config keys")


def given(name: str, value: str | None) -> str:
    """:raises KafkaRefusal: the value is None."""
    if value is None:
        raise KafkaRefusal(ErrorCode.invalid_request, f"Null value not supported for : {name}")
    return value


def _joined(before: list[str], items: list[str], operation: ConfigOperation) -> list[str]:
    if operation is ConfigOperation.SUBTRACT:
        return [item for item in before if item not in items]
    return list(dict.fromkeys([*before, *items]))
