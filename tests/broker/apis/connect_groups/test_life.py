"""The life of a connect group over TCP: join, computation by a client or by the broker, hand-over, restart, end."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.settings import BrokerSettings
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot
from coterie.wire.connect_group_jobs import distinct_jobs_in_arrays
from tests.broker.apis.connect_groups.worker import COMPUTE_ASSIGNMENT, JOBS, Worker, describe
from tests.broker.conftest import Connect, ThreadedBroker, raw_client, wait_until
from tests.groups.connect.simple_assignor import compute


def test_two_workers_join_hand_over_jobs_and_leave(connect: Connect) -> None:
    first, second = Worker(connect(), "w0"), Worker(connect(), "w1")
    asked = first.beat()
    assert (asked.error_code, asked.member_epoch, asked.leader_id) == (COMPUTE_ASSIGNMENT, 0, "w0")
    assert asked.throttle_time_ms == 0
    first.compute()
    response = first.beat()
    assert (response.error_code, response.member_epoch, response.assignment_epoch, response.config_offset) == (
        0,
        1,
        1,
        5,
    )
    assert first.owned == JOBS
    assert first.acknowledge().assignment is None

    assert second.beat().leader_url == "http://w0"
    assert first.beat().error_code == COMPUTE_ASSIGNMENT
    first.compute()
    second.beat(full=True)
    assert (second.epoch, second.owned) == (2, NO_JOBS)
    first.beat()
    kept = first.owned
    assert kept
    assert kept != JOBS
    (waiting,) = (one for one in first.describe().members if one.member_id == "w1")
    assert waiting.state == "COMPLETING_REBALANCE"
    assert [one.holder_id for one in waiting.awaited] == ["w0"]
    first.acknowledge()
    second.beat()
    assert second.owned == JOBS - kept

    assert second.beat(member_epoch=-1).error_code == 0
    first.settle()
    assert first.owned == JOBS
    found = first.describe()
    assert (found.group_state, [one.member_id for one in found.members]) == ("Stable", ["w0"])


def test_a_worker_that_waits_for_a_job_or_has_one_to_release_receives_a_short_interval(connect: Connect) -> None:
    """Neither worker asks the broker to hold its responses."""
    giver, receiver = Worker(connect(), "w0"), Worker(connect(), "w1")
    assert giver.beat().heartbeat_interval_ms == 200, "it has no target"
    giver.compute()
    assert giver.beat().heartbeat_interval_ms == 3_000
    assert giver.acknowledge().heartbeat_interval_ms == 3_000
    assert receiver.beat().heartbeat_interval_ms == 200, "it has no target"
    assert giver.beat().heartbeat_interval_ms == 3_000, "it has all jobs of the target that stands"
    giver.compute()
    assert receiver.beat(full=True).heartbeat_interval_ms == 200, "the other one has its jobs"
    assert giver.beat().heartbeat_interval_ms == 200, "it must release jobs"
    assert giver.beat().heartbeat_interval_ms == 200, "it has acknowledged nothing"
    assert giver.acknowledge().heartbeat_interval_ms == 3_000
    assert receiver.beat().heartbeat_interval_ms == 3_000, "it has its jobs"
    assert giver.owned | receiver.owned == JOBS


@pytest.fixture
def computing_broker(settings: BrokerSettings) -> Iterator[ThreadedBroker]:
    """A broker with an assignor of its own."""

    async def even(snapshot: GroupSnapshot) -> ComputedTarget:
        return compute(snapshot)

    threaded = ThreadedBroker(settings, {"even": even})
    threaded.start()
    yield threaded
    threaded.stop()


def test_an_assignor_of_the_broker_computes(computing_broker: ThreadedBroker) -> None:
    with raw_client(computing_broker.port) as client:
        worker = Worker(client, "w0", client_assignors=None, server_assignor="even")
        assert worker.beat().error_code == 0
        wait_until(lambda: worker.describe().assignment_epoch == 1)
        worker.settle()
        assert worker.owned == JOBS
        unknown = Worker(client, "w1", client_assignors=None, server_assignor="odd")
        refused = unknown.beat()
        assert refused.error_code == 112
        assert refused.error_message == "the coordinator has no assignor odd; its assignors: even"


def test_a_restart_of_the_broker_keeps_everything(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        first, second = Worker(client, "w0"), Worker(client, "w1")
        first.settle()
        second.beat()
        first.beat()
        first.compute()
        first.beat()
        before = first.describe()
        assert before.group_state == "Reconciling"
    broker.stop()
    broker.start()
    with raw_client(broker.port) as client:
        after = describe(client)
        # Only the members report how far they have read the config topic.
        unread = [replace(one, config_offset=-1) for one in before.members]
        assert replace(after, members=()) == replace(before, members=())
        assert [replace(one, config_offset=-1) for one in after.members] == unread
        first.client = second.client = client
        first.acknowledge()
        second.settle()
        assert second.owned == JOBS - first.owned
        assert describe(client).group_state == "Stable"


def test_settled_heartbeats_write_nothing(broker: ThreadedBroker, connect: Connect) -> None:
    worker = Worker(connect(), "w0")
    worker.settle()
    worker.acknowledge()

    async def log_end(context: BrokerContext) -> int:
        (partition,) = context.log.topics["__worker_offsets"].partitions
        return partition.end_offset

    before = broker.run(log_end)
    for _ in range(100):
        for header in [worker.send() for _ in range(100)]:
            assert worker.client.receive(header).error_code == 0
    assert broker.run(log_end) == before


def test_the_statistics_of_the_broker_contain_connect_groups(broker: ThreadedBroker, connect: Connect) -> None:
    worker = Worker(connect(), "w0")
    worker.settle()
    worker.beat(member_epoch=9)

    async def stats(context: BrokerContext) -> Any:
        return broker.broker.stats()

    found = broker.run(stats)
    assert found["connect"]["groups"] == {"Stable": 1}
    assert found["connect"]["computations"] == 1
    assert found["connect"]["refusals"] == {"FENCED_MEMBER_EPOCH": 1}
    assert found["groups"]["workers"]["w0"]["heartbeats"] >= 2


def test_the_target_of_an_install_is_checked(connect: Connect) -> None:
    worker = Worker(connect(), "w0")
    worker.beat()
    prepared = worker.prepare()
    assert distinct_jobs_in_arrays(prepared.configured.value) == JOBS
    refused = worker.install(prepared.group_epoch, {"w0": NO_JOBS})
    assert refused.error_code == 10001
    assert "c0" in refused.error_message
    assert worker.describe().assignment_error.startswith("the target of member w0 is invalid: ")
