"""The configs that can be set on a group: Kafka 4.3's keys, and those of connect groups. All belong to protocols in
which the broker sets the timeouts of the members. The classic protocol has no such keys, because its members send their
own timeouts.

Of Kafka's keys the broker only stores and returns the values: it does not support these protocols. The configs of a
connect group are kept and used by its coordinator.
"""

import re
from collections.abc import Mapping

from coterie.broker.connect_configs import (
    MAX_DELAY,
    connect_group_config_keys_if_served,
    heartbeat_and_session_conflict_error,
)
from coterie.broker.settings import BrokerSettings
from coterie.config.definition import ConfigDef, ConfigKey, Type, Validator, at_least, between, one_of

_DURATION = re.compile(r"P(?=.)([0-9]+D)?(T(?=.)([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?", re.IGNORECASE)
"""An ISO-8601 duration, with days as the largest unit."""
_SECOND_MS = 1_000


def _offset_reset_error(value: str) -> str | None:
    """An error message if ``value`` is not valid for ``share.auto.offset.reset``, else None."""
    kind, _, duration = value.partition(":")
    if value in ("earliest", "latest") or (kind == "by_duration" and _DURATION.fullmatch(duration)):
        return None
    return "must be earliest, latest, or by_duration:<PnDTnHnMn.nS>"


def _key(
    name: str, default: str, documentation: str, validator: Validator | None = None, type_: Type = Type.INT
) -> ConfigKey:
    """The definition of a config that can be set on a group."""
    return ConfigKey(name=name, type=type_, default=default, documentation=documentation, validator=validator)


def _assignment_heartbeat_and_session_keys(kind: str, name: str) -> tuple[ConfigKey, ...]:
    """The definitions of ``<kind>.assignment.interval.ms``, ``<kind>.heartbeat.interval.ms`` and
    ``<kind>.session.timeout.ms``. The bounds of their values are the defaults of Kafka's broker settings. ``name`` is
    the kind of group in the documentation."""
    return (
        _key(f"{kind}.assignment.interval.ms", "1000", f"How long {name} waits between two assignments.",
             between(0, 15 * _SECOND_MS)),
        _key(f"{kind}.heartbeat.interval.ms", "5000", f"How often a member of {name} sends a heartbeat.",
             between(5 * _SECOND_MS, 15 * _SECOND_MS)),
        _key(f"{kind}.session.timeout.ms", "45000", f"How long a member of {name} may be inactive before removal.",
             between(45 * _SECOND_MS, 60 * _SECOND_MS)),
    )  # fmt: skip


_KAFKAS_KEYS = (
    *_assignment_heartbeat_and_session_keys("consumer", "a consumer group"),
    *_assignment_heartbeat_and_session_keys("share", "a share group"),
    _key("share.auto.offset.reset", "latest", "Where a share group begins in a partition that is new to it.",
         _offset_reset_error, Type.STRING),
    _key("share.delivery.count.limit", "5", "How many times a record is delivered to a share group at most.",
         between(2, 10)),
    _key("share.isolation.level", "read_uncommitted", "Whether a share group reads records of transactions that are"
         " not committed.", one_of(("read_committed", "read_uncommitted")), Type.STRING),
    _key("share.partition.max.record.locks", "2000", "How many records of a partition may be locked at once.",
         between(100, 4000)),
    _key("share.record.lock.duration.ms", "30000", "How long a record that is delivered to a member is locked.",
         between(15 * _SECOND_MS, 60 * _SECOND_MS)),
    _key("share.renew.acknowledge.enable", "true", "Whether a member may extend its lock of a record.", None,
         Type.BOOLEAN),
    *_assignment_heartbeat_and_session_keys("streams", "a streams group"),
    _key("streams.initial.rebalance.delay.ms", "3000", "How long a new streams group waits for more members.",
         at_least(0)),
    _key("streams.num.standby.replicas", "0", "The number of standby copies of each task's state.", between(0, 2)),
)  # fmt: skip

_WITHOUT_BROKER_CONFIG = {
    "share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable", MAX_DELAY
}  # fmt: skip
"""The group configs whose default is not a broker config."""


def group_config_definition(settings: BrokerSettings) -> ConfigDef:
    """The definition of all configs that can be set on a group of a broker with these settings, sorted by name. The
    settings decide which keys exist and the bounds of values; the defaults are those of a broker without settings, and
    `group_config_defaults` has those of this broker."""
    return ConfigDef(
        tuple(sorted((*_KAFKAS_KEYS, *connect_group_config_keys_if_served(settings)), key=lambda key: key.name))
    )


def broker_config_giving_default_or_itself(name: str) -> str:
    """The name of the broker config from which the group config ``name`` takes its default: ``group.<name>``; for the
    few group configs without such a broker config, ``name`` itself."""
    return name if name in _WITHOUT_BROKER_CONFIG else f"group.{name}"


def group_config_error(configs: Mapping[str, str], settings: BrokerSettings) -> str | None:
    """An error message if a name in ``configs`` is unknown, a value is invalid, or the heartbeat interval of a connect
    group with these configs would not be less than its session timeout; else None."""
    definition = group_config_definition(settings)
    names = {key.name for key in definition.keys}
    unknown = next((name for name in configs if name not in names), None)
    if unknown is not None:
        return f"Unknown group config name: {unknown}"
    errors = definition.errors(configs)
    return next(iter(errors.values()))[0] if errors else heartbeat_and_session_conflict_error(configs, settings)
