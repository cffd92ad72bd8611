"""Types, defaults and synonyms of configs as both brokers describe them."""

from collections.abc import Callable
from typing import Any

import pytest

from coterie.wire.errors import ErrorCode
from tests.broker.conftest import raw_client
from tests.kafka.faults.admin import BROKER, GROUP, TOPIC, describe
from tests.kafka.faults.row import Scene

pytestmark = [pytest.mark.kafka, pytest.mark.processes]

DEFAULT = 5


def described_configs(port: int, type_: int, name: str = "") -> dict[str, Any]:
    """Each key as DescribeConfigs returns it; of a new topic if no ``name`` is given."""
    with raw_client(port) as client:
        scene = Scene(client)
        resource = describe(type_, name or scene.topic())
        (found,) = scene.ask("DescribeConfigs", 4, resource).results
    assert found.error_code is ErrorCode.none
    return {entry.name: entry for entry in found.configs}


def default_of(entry: Any) -> list[tuple[str, str | None]]:
    """The value and the synonyms of a config that is not set."""
    return [(synonym.name, synonym.value) for synonym in entry.synonyms if synonym.source == DEFAULT]


@pytest.mark.parametrize(("type_", "name"), [(TOPIC, ""), (GROUP, "unused")], ids=["topic", "group"])
def test_topics_and_groups_have_kafkas_config_keys(type_: int, name: str, ready_ports: Callable[[str], int]) -> None:
    ours, theirs = (described_configs(ready_ports(kind), type_, name) for kind in ("embedded", "kafka"))
    assert {key for key in ours if not key.startswith("connect.")} == theirs.keys()
    for key in theirs:
        entry = ours[key]
        other = theirs[key]
        assert (entry.config_type, entry.is_sensitive) == (other.config_type, other.is_sensitive), key
        assert (entry.value, default_of(entry)) == (other.value, default_of(other)), key


def test_the_brokers_config_keys_are_kafkas(ready_ports: Callable[[str], int]) -> None:
    ours, theirs = (described_configs(ready_ports(kind), BROKER, "1") for kind in ("embedded", "kafka"))
    own = {key for key in ours if key.startswith("group.connect.")} | {"group.coordinator.rebalance.protocols"}
    for key, entry in ours.items():
        if key in own:
            continue
        assert entry.config_type == theirs[key].config_type, key
        assert default_of(entry) == default_of(theirs[key]), key
