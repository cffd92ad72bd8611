"""Groups over TCP: every version of the four APIs, restarts, and the coordinator's own failures."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.groups.classic import ClassicMachine
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic import machine
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import Connect, ThreadedBroker, raw_client
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.groups.member import HEARTBEAT, JOIN, SYNC, Member

FIND = 10


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_syncs_sends_heartbeats_and_leaves_in_every_version(connect: Connect, version: int) -> None:
    member = Member(connect(), join=version, sync=min(version, 5), beat=min(version, 4), leave=min(version, 5))
    joined = member.join()
    assert joined.error_code is ErrorCode.none
    assert (joined.leader, joined.protocol_name) == (member.member_id, "default")
    assert [(one.member_id, one.metadata) for one in joined.members] == [(member.member_id, b"mine")]
    assert member.sync((member.member_id, b"work")).assignment == b"work"
    assert member.beat() is ErrorCode.none
    assert member.leave().error_code is ErrorCode.none
    assert member.beat() is ErrorCode.unknown_member_id


def test_a_second_member_causes_a_rebalance_of_both(connect: Connect) -> None:
    first, second = Member(connect()), Member(connect())
    first.join()
    first.sync((first.member_id, b"all"))
    join_values = {
        "group_id": "g",
        "session_timeout": 6000,
        "rebalance_timeout": 6000,
        "group_instance_id": None,
        "protocol_type": "connect",
        "protocols": [{"name": "default", "metadata": b"other"}],
        "reason": None,
    }
    second.member_id = second.client.ask(JOIN, 9, member_id="", **join_values).member_id
    parked = second.client.send(JOIN, 9, member_id=second.member_id, **join_values)
    while first.beat() is ErrorCode.none:
        pass
    assert first.beat() is ErrorCode.rebalance_in_progress
    assert len(first.join().members) == 2
    assert second.client.receive(parked).generation_id == first.generation == 2
    second.generation = 2
    waiting = second.client.send(
        SYNC, 5, group_id="g", generation_id=2, member_id=second.member_id, group_instance_id=None,
        protocol_type="connect", protocol_name="default", assignments=(),
    )  # fmt: skip
    assert first.sync((first.member_id, b"a"), (second.member_id, b"b")).assignment == b"a"
    assert second.client.receive(waiting).assignment == b"b"


def test_a_group_is_restored_after_a_restart_of_the_broker(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        member = Member(client)
        member.join()
        member.sync((member.member_id, b"work"))
    broker.stop()
    broker.start()
    with raw_client(broker.port) as client:
        member.client = client
        assert member.beat() is ErrorCode.none
        assert member.sync().assignment == b"work"


def test_the_broker_is_the_coordinator_of_every_group(connect: Connect, broker: ThreadedBroker) -> None:
    client = connect()
    for version in range(7):
        answer = client.ask(FIND, version, key="g", key_type=0, coordinator_keys=["g", "h"])
        found = answer.coordinators if version >= 4 else (answer,)
        assert {(one.host, one.port) for one in found} == {("127.0.0.1", broker.port)}
    (transaction,) = client.ask(FIND, 4, key_type=1, coordinator_keys=["transaction"]).coordinators
    assert (transaction.error_code, transaction.port) == (ErrorCode.none, broker.port)
    (refused,) = client.ask(FIND, 4, key_type=2, coordinator_keys=["share group"]).coordinators
    assert refused.error_code is ErrorCode.invalid_request


def test_a_broker_with_the_maximum_of_groups_refuses_a_new_one(settings: BrokerSettings) -> None:
    limits = ClassicGroupSettings(initial_rebalance_delay_ms=50, session_timeout_min_ms=500, groups_max=1)
    broker = ThreadedBroker(BrokerSettings(data_path=settings.data_path, group_limits=limits))
    broker.start()
    try:
        with raw_client(broker.port) as client, raw_client(broker.port) as another:
            member, stranger = Member(client), Member(another)
            assert member.join().error_code is ErrorCode.none
            join_values = {
                "session_timeout": 6000, "rebalance_timeout": 6000, "member_id": "", "group_instance_id": None,
                "protocol_type": "connect", "protocols": [{"name": "default", "metadata": b""}], "reason": None,
            }  # fmt: skip
            assert another.ask(JOIN, 9, group_id="one more", **join_values).error_code is ErrorCode.policy_violation
            # Requests to a group that does not exist still get their error, and the existing group still works.
            stranger.member_id = "m"
            assert stranger.beat() is ErrorCode.unknown_member_id
            assert another.ask(JOIN, 9, group_id="g", **join_values).error_code is ErrorCode.member_id_required
    finally:
        broker.stop()


def test_a_bug_in_the_machine_of_a_group_loses_nothing_that_was_durable(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member, other = Member(connect()), Member(connect())
    member.join()
    member.sync((member.member_id, b"what it has to do"))
    real_step = machine.step

    def broken_once(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(ClassicMachine, "step", staticmethod(real_step))
        raise AssertionError("planted")

    monkeypatch.setattr(ClassicMachine, "step", staticmethod(broken_once))
    with caplog.at_level(logging.ERROR, logger="coterie.broker"):
        assert member.beat() is ErrorCode.not_coordinator
    assert "planted" in caplog.text
    assert "Heartbeat" in caplog.text
    assert "SyncGroup" in caplog.text
    # The log has member ids and counts, but neither assignments nor metadata of members.
    assert "what it has to do" not in caplog.text
    assert member.beat() is ErrorCode.none
    assert other.beat() is ErrorCode.unknown_member_id


def test_a_group_keeps_few_bytes_of_requests_from_unknown_members(connect: Connect, broker: ThreadedBroker) -> None:
    member, stranger = Member(connect()), Member(connect())
    member.join()
    stranger.member_id = "m" * 10_000
    for _ in range(5):
        assert stranger.sync(("w" * 10_000, b"w" * 1_000_000)).error_code is ErrorCode.unknown_member_id
        assert stranger.beat() is ErrorCode.unknown_member_id
    (host,) = broker.broker.context.groups._hosts.values()
    story = host._trace.recent_text(entries_count=1_000)
    assert story.count("SyncGroup") == story.count("Heartbeat") == 5
    assert len(story) < 5_000


def test_a_group_that_never_had_a_member_is_not_kept(connect: Connect, broker: ThreadedBroker) -> None:
    stranger = Member(connect())
    for _ in range(5):
        assert stranger.beat() is ErrorCode.unknown_member_id

    async def tasks_of_groups(_: BrokerContext) -> list[str]:
        return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("group ")]

    assert broker.run(tasks_of_groups) == []
    Member(connect()).join()
    assert broker.run(tasks_of_groups) == ["group g"]


def test_the_stats_contain_the_largest_gap_between_heartbeats(connect: Connect, broker: ThreadedBroker) -> None:
    member = Member(connect())
    member.join()
    member.sync((member.member_id, b"work"))
    for _ in range(3):
        member.beat()
    stats: Any = broker.broker.stats()
    member_stats = stats["groups"]["g"][member.member_id]
    assert member_stats["heartbeats"] == 3
    assert 0 <= member_stats["largest_gap_ms"] < 6000


def test_the_stats_contain_nothing_of_unknown_members(connect: Connect, broker: ThreadedBroker) -> None:
    member = Member(connect())
    member.join()
    stranger = Member(connect())
    for group_id in ("g", "unknown"):
        fields = {"group_id": group_id, "generation_id": 1, "group_instance_id": None}
        for number in range(3):
            beat = stranger.ask(HEARTBEAT, member_id=f"stranger-{number}" * 1_000, **fields)
            assert beat.error_code is ErrorCode.unknown_member_id
        synced = stranger.ask(
            SYNC, member_id="stranger", protocol_type="connect", protocol_name="default", assignments=[], **fields
        )
        assert synced.error_code is ErrorCode.unknown_member_id
        joined = stranger.ask(
            JOIN,
            group_id=group_id,
            session_timeout=6000,
            rebalance_timeout=6000,
            member_id="stranger",
            group_instance_id=None,
            protocol_type="connect",
            protocols=[{"name": "default", "metadata": b""}],
            reason=None,
        )
        assert joined.error_code is ErrorCode.unknown_member_id
    stats: Any = broker.broker.stats()
    assert {group_id: set(members) for group_id, members in stats["groups"].items()} == {"g": {member.member_id}}


@pytest.fixture
def settings(tmp_path: Path) -> BrokerSettings:
    return BrokerSettings(
        data_path=tmp_path / "broker",
        group_limits=ClassicGroupSettings(initial_rebalance_delay_ms=20),
        stats_path=tmp_path / "stats.json",
    )


def test_stats_are_written_when_the_broker_ends(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        Member(client).join()
    broker.stop()
    assert broker.settings.stats_path is not None
    assert '"largest_gap_ms"' in broker.settings.stats_path.read_text()


def test_a_group_is_reloaded_after_a_failed_append(connect: Connect, broker: ThreadedBroker) -> None:
    member = Member(connect())
    member.join()
    broker.run(lambda node: node.log.run_write(fill_disk))
    assert member.sync((member.member_id, b"x" * 200_000)).error_code is ErrorCode.not_coordinator
    broker.run(lambda node: node.log.run_write(lift_limit))
    # No member got an assignment in that generation, so the reloaded group requires a new one.
    member.join()
    assert member.sync((member.member_id, b"work")).assignment == b"work"
    assert member.beat() is ErrorCode.none
