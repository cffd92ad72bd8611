"""Configs of one connect group, by Kafka's config APIs: in effect at once, and after a restart."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.groups.registry import Groups
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from tests.broker.apis.connect_groups.worker import Worker
from tests.broker.conftest import DEADLINE_S, Connect, RawClient, ThreadedBroker, raw_client
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.held_loads import hold_group_loads

GROUP, BROKER = 32, 4
SESSION, HEARTBEAT_INTERVAL = "connect.session.timeout.ms", "connect.heartbeat.interval.ms"
DELAY = "connect.scheduled.rebalance.max.delay.ms"
SET, DELETE = 0, 1


def alter(
    client: RawClient, *changes: tuple[str, int, str | None], validate_only: bool = False, name: str = "workers"
) -> Any:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": configs}
    (answer,) = client.ask(44, 1, resources=[resource], validate_only=validate_only).responses
    return answer


def entries(client: RawClient, type_: int = GROUP, name: str = "workers") -> dict[str, Any]:
    resource = {"resource_type": type_, "resource_name": name, "configuration_keys": None}
    (found,) = client.ask(32, 4, resources=[resource], include_synonyms=True, include_documentation=False).results
    assert found.error_code is ErrorCode.none
    return {entry.name: entry for entry in found.configs}


def configured_groups(client: RawClient) -> list[str]:
    return [one.resource_name for one in client.ask(74, 1, resource_types=(GROUP,)).config_resources]


def test_a_group_config_is_in_effect_at_once_and_after_a_restart(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        worker = Worker(client, "w0")
        worker.settle()
        assert worker.beat(full=True).session_timeout_ms == 10_000
        changes = ((SESSION, SET, "7000"), (DELAY, SET, "5"), ("share.delivery.count.limit", SET, "7"))
        assert alter(client, *changes).error_code is ErrorCode.none
        assert worker.beat().session_timeout_ms == 7_000
    broker.stop()
    broker.start()
    with raw_client(broker.port) as client:
        worker.client = client
        assert worker.beat(full=True).session_timeout_ms == 7_000
        found = entries(client)
        assert [found[name].value for name in (SESSION, DELAY, "share.delivery.count.limit")] == ["7000", "5", "7"]
        assert found[SESSION].config_source == 8
        assert [(one.name, one.value) for one in found[SESSION].synonyms] == [
            (SESSION, "7000"), ("group.connect.session.timeout.ms", "10000"),
        ]  # fmt: skip
        assert configured_groups(client) == ["workers"]
        deletions = tuple((name, DELETE, None) for name, _, _ in changes)
        assert alter(client, *deletions).error_code is ErrorCode.none
        assert worker.beat().session_timeout_ms == 10_000
        assert configured_groups(client) == []


def test_configs_may_be_set_before_the_group_exists_and_outlive_a_restart(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        assert alter(client, (SESSION, SET, "7000")).error_code is ErrorCode.none
        assert client.ask(16, 4, states_filter=()).groups == ()
    broker.stop()
    broker.start()
    with raw_client(broker.port) as client:
        assert entries(client)[SESSION].value == "7000"
        assert Worker(client, "w0").beat().session_timeout_ms == 7_000


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ([(SESSION, SET, "5999")], ErrorCode.invalid_config, "5999"),
        ([(SESSION, SET, "soon")], ErrorCode.invalid_config, "soon"),
        ([("connect.session.timeout", SET, "1")], ErrorCode.invalid_config, "Unknown group config name"),
        ([(SESSION, SET, "6000"), (HEARTBEAT_INTERVAL, SET, "6000")], ErrorCode.invalid_config,
         "connect.heartbeat.interval.ms (6000) must be less than connect.session.timeout.ms (6000)"),
        ([(SESSION, SET, None)], ErrorCode.invalid_request, "Null value"),
    ],
)  # fmt: skip
def test_an_invalid_group_config_changes_nothing(
    connect: Connect, changes: list[Any], error: ErrorCode, message: str
) -> None:
    client = connect()
    refused = alter(client, (DELAY, SET, "5"), *changes)
    assert refused.error_code is error
    assert message in refused.error_message
    assert configured_groups(client) == []


def test_on_a_full_disk_all_configs_of_a_request_are_set_or_none(broker: ThreadedBroker) -> None:
    """The broker stores those of connect groups and all others by two writes. Both need new pages of its file."""
    limit = "share.delivery.count.limit"
    errors = []
    with raw_client(broker.port) as client:
        for spare_pages in range(12):
            name = f"{spare_pages}-" + "n" * 9_000
            broker.run(lambda node: node.log.run_write(partial(fill_disk, spare_pages=spare_pages)))  # noqa: B023
            errors.append(alter(client, (SESSION, SET, "7000"), (limit, SET, "7"), name=name).error_code)
            broker.run(lambda node: node.log.run_write(lift_limit))
            found = entries(client, name=name)
            expected = ("7000", "7") if errors[-1] is ErrorCode.none else ("10000", "5")
            assert (found[SESSION].value, found[limit].value) == expected, (spare_pages, errors)
    assert len(set(errors)) > 1, errors


def test_a_change_that_is_repeated_after_a_failed_write_is_written(
    broker: ThreadedBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the group is reloaded, the state of its coordinator contains the change that was not written."""
    is_waiting, wait_until_loaded = threading.Event(), Groups.wait_until_loaded

    async def note_and_wait(groups: Any, group_id: GroupId) -> None:
        is_waiting.set()
        await wait_until_loaded(groups, group_id)

    may_load = hold_group_loads(monkeypatch)
    client, name = connect(), "n" * 9_000
    broker.run(lambda context: context.log.run_write(fill_disk))
    assert alter(client, (SESSION, SET, "7000"), name=name).error_code is ErrorCode.not_coordinator
    broker.run(lambda context: context.log.run_write(lift_limit))
    monkeypatch.setattr(Groups, "wait_until_loaded", note_and_wait)
    with ThreadPoolExecutor(max_workers=1) as other_thread:
        repeated = other_thread.submit(alter, client, (SESSION, SET, "7000"), name=name)
        assert is_waiting.wait(DEADLINE_S), repeated.result(DEADLINE_S).error_code
        may_load.set()
        assert repeated.result(DEADLINE_S).error_code is ErrorCode.none
    broker.stop()
    broker.start()
    assert entries(connect(), name=name)[SESSION].value == "7000"


def test_after_a_kill_at_any_statement_the_repeated_request_sets_all_configs(
    broker: ThreadedBroker, tmp_path: Path
) -> None:
    """A kill between the two writes leaves the first one, of configs that this broker only stores and returns."""
    limit, copies = "share.delivery.count.limit", list[Path]()
    changes = ((SESSION, SET, "7000"), (limit, SET, "7"))

    def copy(_statement: str) -> None:
        copies.append(tmp_path / f"killed-{len(copies)}")
        shutil.copytree(broker.settings.data_path, copies[-1])

    def copy_at_each_statement(callback: Callable[[str], None] | None) -> None:
        broker.run(lambda node: node.log.run_write(lambda store: store.database.set_trace_callback(callback)))

    with raw_client(broker.port) as client:
        copy_at_each_statement(copy)
        assert alter(client, *changes).error_code is ErrorCode.none
        copy_at_each_statement(None)
        copy("after the last")
    broker.stop()
    states = []
    for folder in copies:
        killed = ThreadedBroker(replace(broker.settings, data_path=folder))
        killed.start()
        with raw_client(killed.port) as client:
            found = entries(client)
            states.append((found[SESSION].value, found[limit].value))
            assert alter(client, *changes).error_code is ErrorCode.none
            found = entries(client)
            assert (found[SESSION].value, found[limit].value) == ("7000", "7")
        killed.stop()
    assert list(dict.fromkeys(states)) == [("10000", "5"), ("10000", "7"), ("7000", "7")]


def test_a_validated_group_config_is_not_set(connect: Connect) -> None:
    client = connect()
    assert alter(client, (SESSION, SET, "7000"), validate_only=True).error_code is ErrorCode.none
    assert configured_groups(client) == []


def test_the_broker_describes_its_settings_of_connect_groups(connect: Connect) -> None:
    found = entries(connect(), BROKER, "1")
    assert found["group.connect.initial.rebalance.delay.ms"].value == "0", "the setting of this test's broker"
    assert found["group.connect.session.timeout.ms"].value == "10000"
    assert found["group.coordinator.rebalance.protocols"].value == "classic,connect"
