"""Three workers with instance ids: one restarts within its session, and only its own jobs stop."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.member.classic.messages import HeartbeatRequest, JoinRequest
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.nouns.jobs import ConnectorTaskId
from coterie.wire.errors import ErrorCode
from tests.worker.fleet import ORDERS, Fleet, Remote
from tests.worker.simulated import until

NAMES = [InstanceId(f"worker-{number}") for number in range(3)]


@pytest.fixture
async def fleet(bootstrap: str) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(bootstrap, stack)
        yield fleet
        await fleet.stop()


async def view_of(remote: Remote) -> WorkerView | None:
    view = await remote.worker.ask(DescribeWorker())
    return view if isinstance(view, WorkerView) else None


async def until_settled(remotes: list[Remote], tasks: int) -> GenerationId:
    """Wait until all are in one generation and run ``tasks`` tasks in total."""

    async def is_so() -> bool:
        views = [await view_of(remote) for remote in remotes]
        return (
            all(view is not None and view.has_current_assignment for view in views)
            and len({view.generation for view in views if view is not None}) == 1
            and sum(len(remote.runtime.running) for remote in remotes) == tasks
        )

    await until(is_so, within_s=60)
    view = await view_of(remotes[0])
    assert view is not None
    return view.generation


async def in_generation(remotes: list[Remote], generation: int) -> bool:
    views = [await view_of(remote) for remote in remotes]
    return all(view is not None and view.has_current_assignment and view.generation == generation for view in views)


async def is_leader(remote: Remote) -> bool:
    view = await view_of(remote)
    return view is not None and view.leader == view.member_id


def own(remote: Remote) -> set[ConnectorTaskId]:
    return set(remote.runtime.running)


@pytest.mark.parametrize("away", [0, 2], ids=["the leader", "a follower"])
async def test_a_restarted_static_worker_gets_its_own_jobs_in_one_rebalance_and_no_other_stops(
    fleet: Fleet, away: int
) -> None:
    remotes = [await fleet.start(instance_id=name) for name in NAMES]
    await until(lambda: all(remote.worker.phase == "running" for remote in remotes), within_s=60)
    await fleet.create(ORDERS, 6)
    await fleet.until_running(remotes[0], ORDERS, 6)
    generation = await until_settled(remotes, 6)
    leads = [await is_leader(remote) for remote in remotes]
    index = (leads.index(True) + away) % 3
    others = [remote for remote in remotes if remote is not remotes[index]]
    owned, starts = own(remotes[index]), [list(remote.runtime.starts) for remote in others]

    remotes[index].worker.order_shutdown("SIGTERM")
    async with asyncio.timeout(30):
        assert (await remotes[index].run).exit_code == 0
    assert sorted(remotes[index].runtime.stops) == sorted(owned), "a task still runs after the worker has ended"
    back = await fleet.start(number=index, instance_id=NAMES[index])
    await until(lambda: own(back) == owned, within_s=60)
    assert await until_settled([back, *others], 6) == generation + 1, "one rebalance at its return, none at its end"
    assert [list(remote.runtime.starts) for remote in others] == starts
    assert all(not remote.runtime.stops for remote in others)
    assert sorted(back.runtime.starts) == sorted(owned), "a task was started more than once"


async def test_a_static_worker_that_returns_after_its_session_and_within_the_delay_gets_its_jobs(fleet: Fleet) -> None:
    """As with Spark and the default session, which is shorter than Spark's start."""
    fleet.delay_ms = 60_000
    remotes = [await fleet.start(instance_id=name) for name in NAMES]
    await until(lambda: all(remote.worker.phase == "running" for remote in remotes), within_s=60)
    await fleet.create(ORDERS, 6)
    await fleet.until_running(remotes[0], ORDERS, 6)
    generation = await until_settled(remotes, 6)
    leads = [await is_leader(remote) for remote in remotes]
    index = leads.index(False)
    others = [remote for remote in remotes if remote is not remotes[index]]
    owned, starts = own(remotes[index]), [list(remote.runtime.starts) for remote in others]
    remotes[index].worker.order_shutdown("SIGTERM")
    async with asyncio.timeout(30):
        await remotes[index].run
    await until(lambda: in_generation(others, generation + 1), within_s=60)
    back = await fleet.start(number=index, instance_id=NAMES[index])
    await until(lambda: own(back) == owned, within_s=60)
    assert [list(remote.runtime.starts) for remote in others] == starts
    assert all(not remote.runtime.stops for remote in others)


async def test_of_two_workers_with_one_instance_id_the_former_ends_with_the_reason(fleet: Fleet) -> None:
    first = await fleet.start(instance_id=NAMES[0])
    await until(lambda: first.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 2)
    await fleet.until_running(first, ORDERS, 2)
    second = await fleet.start(instance_id=NAMES[0])
    async with asyncio.timeout(60):
        ended = await first.run
    assert ended.exit_code == 1
    assert "group.instance.id=worker-0" in ended.reason
    assert not first.runtime.running
    await until(lambda: len(second.runtime.running) == 2, within_s=60)
    # The second worker has the membership from its join on, and the first one gets the error with its next heartbeat:
    # in between both may run a task, and the checkpoint fences the first one.
    fleet.floor.double_starts.clear()


async def test_a_heartbeat_with_an_instance_id_shows_whether_the_group_has_that_instance(bootstrap: str) -> None:
    """The request that a member sends before its first join."""
    coordinator = KafkaClassicCoordinatorClient(
        [bootstrap], client_id="asks", request_timeout_ms=10_000, parked_timeout_ms=20_000
    )
    group = GroupId(f"group-{uuid.uuid4().hex[:8]}")

    async def answered() -> ErrorCode:
        question = HeartbeatRequest(
            group_id=group, member_id=MemberId(""), instance_id=NAMES[0], generation=GenerationId(-1)
        )
        return (await coordinator.ask(question)).error

    async def is_unknown() -> bool:
        return await answered() is ErrorCode.unknown_member_id

    try:
        join = JoinRequest(
            group_id=group,
            member_id=MemberId(""),
            instance_id=NAMES[0],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="connect",
            protocols=(("compatible", b""),),
        )
        # A coordinator that has just started responds first that it is not available.
        await until(is_unknown, within_s=60)
        joined = await coordinator.ask(join)
        assert joined.error is ErrorCode.none
        assert await answered() is ErrorCode.fenced_instance_id
    finally:
        await coordinator.close()
