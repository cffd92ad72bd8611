"""The configs of connect groups: read from text, with their bounds."""

from pathlib import Path

import pytest

from coterie.broker.connect_configs import broker_config_keys, broker_config_values, with_broker_configs
from coterie.broker.settings import BrokerSettings, GroupProtocol
from coterie.nouns.errors import ConfigError

DEFAULTS = BrokerSettings(data_path=Path("unused"))
OTHERS = {
    "group.connect.assignment.interval.ms": "300",
    "group.connect.assignors": "even,odd",
    "group.connect.computation.timeout.ms": "4000",
    "group.connect.connection.grace.ms": "0",
    "group.connect.heartbeat.interval.ms": "1000",
    "group.connect.initial.rebalance.delay.ms": "5",
    "group.connect.max.assignment.interval.ms": "400",
    "group.connect.max.heartbeat.interval.ms": "2000",
    "group.connect.max.session.timeout.ms": "9000",
    "group.connect.max.size": "12",
    "group.connect.min.assignment.interval.ms": "200",
    "group.connect.min.heartbeat.interval.ms": "500",
    "group.connect.min.session.timeout.ms": "7000",
    "group.connect.session.timeout.ms": "8000",
    "group.coordinator.rebalance.protocols": "classic",
}


def test_a_broker_without_configs_has_the_defaults() -> None:
    assert with_broker_configs(DEFAULTS, {}) == DEFAULTS
    values = broker_config_values(DEFAULTS)
    assert {key.name: key.default for key in broker_config_keys()} == {name: str(values[name]) for name in values}


def test_each_config_sets_its_value() -> None:
    changed = with_broker_configs(DEFAULTS, OTHERS)
    assert {name: str(value) for name, value in broker_config_values(changed).items()} == OTHERS
    assert changed.group_protocols == {GroupProtocol.CLASSIC}
    assert not changed.serves_connect_groups


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("group.connect.session.timeout", "1", "This broker has no such config."),
        ("group.connect.session.timeout.ms", "soon", "soon"),
        ("group.connect.session.timeout.ms", "5999", "It is 5999, and must be between 6000 and 1800000."),
        ("group.connect.heartbeat.interval.ms", "15001", "It is 15001, and must be between 100 and 15000."),
        ("group.connect.computation.timeout.ms", "0", "0"),
        ("group.connect.max.size", "0", "0"),
        ("group.coordinator.rebalance.protocols", "connect", "The list must contain classic, and may contain connect."),
        ("group.coordinator.rebalance.protocols", "classic,share", "The list must contain classic"),
    ],
)
def test_an_invalid_config_is_refused_by_name(name: str, value: str, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_broker_configs(DEFAULTS, {name: value})
    (message,) = refused.value.errors[name]
    assert error in message
