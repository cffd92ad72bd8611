"""The configs of connect groups: those of the broker (``group.connect.*``), and those that can be set on one group
(``connect.*``), which take their defaults from the broker's.

Kafka has no such keys. Names and bounds follow its keys for consumer groups (KIP-848).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.broker.settings import BrokerSettings, ConnectGroupConfigBounds, GroupProtocol
from coterie.config.definition import ConfigDef, ConfigKey, Type, Validator, at_least, between, split_list
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.errors import ConfigError

GROUP_PREFIX = "connect."
"""The prefix of the names of configs that can be set on one connect group."""
MAX_DELAY = "connect.scheduled.rebalance.max.delay.ms"
"""The only config of connect groups whose default is not a broker config: the default is the setting of the worker that
computes the assignment."""
_PROTOCOLS = "group.coordinator.rebalance.protocols"
_SIZE_MAX, _ASSIGNORS = "group.connect.max.size", "group.connect.assignors"


@dataclass(frozen=True, slots=True)
class _DurationConfig:
    """A duration that the broker has a setting for, and that can be set on a group. ``name`` is without the prefixes
    ``connect.`` (the group's config) and ``group.connect.`` (the broker's). ``bounds_field_prefix`` is empty if the
    broker has no settings for the bounds; then ``least_ms`` is the least value in the configs of a group, too."""

    name: str
    """The name of the group config, without the prefix."""
    settings_field: str
    """The field of `ConnectGroupSettings`."""
    documentation: str
    bounds_field_prefix: str = ""
    """The prefix of the names of its two fields in `ConnectGroupConfigBounds`; empty if the broker has no settings for
    its bounds."""
    least_ms: int = 0
    """The least value of the broker config; without bounds in the settings, also of the group config."""


_DURATIONS = (
    _DurationConfig(
        "assignment.interval.ms",
        "assignment_interval_ms",
        "The least time between two computations of a target assignment.",
        "assignment_interval",
    ),
    _DurationConfig(
        "computation.timeout.ms",
        "computation_timeout_ms",
        "How long the member that was chosen to compute a target assignment may take until it installs the result.",
        least_ms=1,
    ),
    _DurationConfig(
        "connection.grace.ms",
        "connection_grace_ms",
        "The maximum time from the orderly end of a member's connection until the member is removed if it sends no "
        "request; 0: the end of a connection has no effect.",
    ),
    _DurationConfig(
        "heartbeat.interval.ms",
        "heartbeat_interval_ms",
        "The time between two heartbeats of a member to whose heartbeats the broker responds at once.",
        "heartbeat_interval",
    ),
    _DurationConfig(
        "initial.rebalance.delay.ms",
        "initial_rebalance_delay_ms",
        "How long a group without members waits for more members after the first one has joined.",
    ),
    _DurationConfig(
        "session.timeout.ms",
        "session_timeout_ms",
        "How long a member stays in the group without an accepted request.",
        "session_timeout",
    ),
)


def _min_and_max_config_names(duration: _DurationConfig) -> tuple[str, str]:
    """The names of the broker configs with the least and the greatest value of a group's duration."""
    return f"group.connect.min.{duration.name}", f"group.connect.max.{duration.name}"


def broker_config_keys() -> tuple[ConfigKey, ...]:
    """The broker configs for connect groups, and the one that lists the served protocols; sorted by name."""
    keys = [
        _key(_PROTOCOLS, ",".join(GroupProtocol), "The protocols of the groups that the broker serves.", Type.LIST),
        _key(
            _ASSIGNORS,
            "",
            "The assignors that compute target assignments in the broker; empty: all that it has.",
            Type.LIST,
        ),
        _key(
            _SIZE_MAX,
            str(ConnectGroupSettings().group_size_max),
            "How many members a connect group may have.",
            validator=at_least(1),
        ),
    ]
    for duration in _DURATIONS:
        default = str(getattr(ConnectGroupSettings(), duration.settings_field))
        keys.append(
            _key(
                f"group.connect.{duration.name}", default, duration.documentation, validator=at_least(duration.least_ms)
            )
        )
        if duration.bounds_field_prefix:
            for end, name in zip(("min", "max"), _min_and_max_config_names(duration), strict=True):
                limit = str(getattr(ConnectGroupConfigBounds(), f"{duration.bounds_field_prefix}_{end}_ms"))
                what = "least" if end == "min" else "greatest"
                keys.append(_key(name, limit, f"The {what} {duration.name} of a group.", validator=at_least(0)))
    return tuple(sorted(keys, key=lambda key: key.name))


def broker_config_values(settings: BrokerSettings) -> Mapping[str, object]:
    """The value of each of :func:`broker_config_keys` in a broker with these settings."""
    values: dict[str, object] = {
        _PROTOCOLS: ",".join(one for one in GroupProtocol if one in settings.group_protocols),
        _ASSIGNORS: ",".join(settings.connect_assignors_or_all or ()),
        _SIZE_MAX: settings.connect_groups.group_size_max,
    }
    for duration in _DURATIONS:
        values[f"group.connect.{duration.name}"] = getattr(settings.connect_groups, duration.settings_field)
        if duration.bounds_field_prefix:
            values |= zip(_min_and_max_config_names(duration), _duration_bounds(settings, duration), strict=True)
    return values


def with_broker_configs(settings: BrokerSettings, configs: Mapping[str, str]) -> BrokerSettings:
    """A copy of ``settings`` with the values of the broker configs ``configs``.

    :raises ConfigError: when a name is not one of :func:`broker_config_keys`, a value is not valid, or a duration is
        not within the bounds for groups that result from ``configs`` and ``settings``.
    """
    definition = ConfigDef(broker_config_keys())
    known = {key.name for key in definition.keys}
    # One message for each config: Connect has a second one, about a null, for a text in place of a number.
    errors: dict[str, Sequence[str]] = {
        key.name: [message]
        for key in definition.keys
        if (message := key.value_error(configs.get(key.name, key.default))) is not None
    }
    errors |= {name: ["This broker has no such config."] for name in configs.keys() - known}
    protocols = split_list(configs.get(_PROTOCOLS, ",".join(settings.group_protocols)))
    if GroupProtocol.CLASSIC not in protocols or not {*GroupProtocol}.issuperset(protocols):
        errors[_PROTOCOLS] = [
            f"The list must contain {GroupProtocol.CLASSIC}, and may contain {GroupProtocol.CONNECT}."
        ]
    if errors:
        raise ConfigError(errors)
    groups: dict[str, int] = {}
    bounds: dict[str, int] = {}
    for duration in _DURATIONS:
        if (value := configs.get(f"group.connect.{duration.name}")) is not None:
            groups[duration.settings_field] = int(value)
        for end, name in zip(("min", "max"), _min_and_max_config_names(duration), strict=True):
            if name in configs:
                bounds[f"{duration.bounds_field_prefix}_{end}_ms"] = int(configs[name])
    if _SIZE_MAX in configs:
        groups["group_size_max"] = int(configs[_SIZE_MAX])
    assignors = split_list(configs.get(_ASSIGNORS, ""))
    changed = replace(
        settings,
        group_protocols=frozenset(map(GroupProtocol, protocols)),
        connect_groups=replace(settings.connect_groups, **groups),  # type: ignore[arg-type]
        connect_group_config_bounds=replace(settings.connect_group_config_bounds, **bounds),
        connect_assignors_or_all=tuple(assignors) or settings.connect_assignors_or_all,
    )
    for duration in _DURATIONS:
        value_ms, (least, greatest) = (
            getattr(changed.connect_groups, duration.settings_field),
            _duration_bounds(changed, duration),
        )
        if not least <= value_ms <= greatest:
            message = f"It is {value_ms}, and must be between {least} and {greatest}."
            raise ConfigError({f"group.connect.{duration.name}": [message]})
    return changed


def connect_group_config_keys_if_served(settings: BrokerSettings) -> tuple[ConfigKey, ...]:
    """The definitions of the configs that can be set on one connect group; none if the broker does not serve connect
    groups. The bounds of the values are those of ``settings``. The defaults are those of a broker without any setting;
    those of ``settings`` are in :func:`group_config_defaults`."""
    if not settings.serves_connect_groups:
        return ()
    keys = [
        _key(f"{GROUP_PREFIX}{duration.name}", str(getattr(ConnectGroupSettings(), duration.settings_field)),
             duration.documentation, validator=between(*_duration_bounds(settings, duration)))
        for duration in _DURATIONS
    ]  # fmt: skip
    delay = (
        "How long the jobs of a member that has left are given to no other member; if not set, the setting of the"
        " worker that computes the assignment applies."
    )
    keys.append(ConfigKey(name=MAX_DELAY, type=Type.INT, is_optional=True, documentation=delay, validator=at_least(0)))
    return tuple(sorted(keys, key=lambda key: key.name))


def group_config_defaults(settings: BrokerSettings) -> Mapping[str, str]:
    """By name, the value that each config of connect groups has in a group on which the config is not set: the broker's
    setting. ``MAX_DELAY`` is missing, because the broker has no setting for it."""
    return {
        f"{GROUP_PREFIX}{one.name}": str(getattr(settings.connect_groups, one.settings_field)) for one in _DURATIONS
    }


def heartbeat_and_session_conflict_error(configs: Mapping[str, str], settings: BrokerSettings) -> str | None:
    """An error message if a group with these ``configs``, each of which is valid, would have a heartbeat interval that
    is not less than its session timeout; else None. None also if no config of connect groups is among them."""
    if not any(name.startswith(GROUP_PREFIX) for name in configs):
        return None
    effective = settings.connect_groups.with_configs(configs)
    if effective.heartbeat_interval_ms < effective.session_timeout_ms:
        return None
    return (
        f"{GROUP_PREFIX}heartbeat.interval.ms ({effective.heartbeat_interval_ms}) must be less than"
        f" {GROUP_PREFIX}session.timeout.ms ({effective.session_timeout_ms})"
    )


def _duration_bounds(settings: BrokerSettings, duration: _DurationConfig) -> tuple[int, int]:
    """The least and the greatest value, in ms, that ``duration`` may have in the configs of a group."""
    if not duration.bounds_field_prefix:
        return duration.least_ms, 2**31 - 1
    bounds = settings.connect_group_config_bounds
    return (
        getattr(bounds, f"{duration.bounds_field_prefix}_min_ms"),
        getattr(bounds, f"{duration.bounds_field_prefix}_max_ms"),
    )


def _key(
    name: str, default: str, documentation: str, type_: Type = Type.INT, validator: Validator | None = None
) -> ConfigKey:
    """The definition of a config of the broker or of a connect group."""
    return ConfigKey(name=name, type=type_, default=default, documentation=documentation, validator=validator)
