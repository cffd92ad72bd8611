"""The machine of connect groups as the broker runs it: computations in the broker, failures, and the reload."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.broker.groups.connect import CONNECT_TOPIC
from coterie.broker.storage.log import BrokerLog
from coterie.cli.assignors import assign_functions_by_name
from coterie.groups.connect.messages import DescribeGroupResponse, GroupState, SetGroupConfigs
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import LEAVE_BRIEFLY_EPOCH, ConfiguredJobs, HeartbeatResponse
from coterie.nouns.ids import ConfigOffset, GroupId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import (
    AssignFunction,
    ComputedTarget,
    DeferredJobs,
    GroupSnapshot,
    TargetOfMember,
    UnplaceableJobs,
)
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.groups.connect_groups import GROUP, QUICK_SETTINGS, beat, connect_groups, described
from tests.groups.connect.builders import JOBS
from tests.groups.connect.simple_assignor import compute

NO_CLIENT_ASSIGNORS: dict[str, Any] = {"client_assignors": None, "server_assignor": "even"}


async def even(snapshot: GroupSnapshot) -> ComputedTarget:
    return compute(snapshot)


async def until(is_reached: Callable[[DescribeGroupResponse], bool], groups: Any) -> DescribeGroupResponse:
    """Wait until the description of the group fulfils the condition."""
    for _ in count():
        if is_reached(found := await described(groups)):
            return found
        await asyncio.sleep(0.005)
    raise AssertionError


async def test_an_assignor_of_the_broker_computes_the_target(log: BrokerLog) -> None:
    async with connect_groups(log, {"even": even}) as groups:
        await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        await until(lambda found: found.assignment_epoch == found.group_epoch, groups)
        response = await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        assert response.assignment is not None
        assert response.assignment.jobs == JOBS


async def fails(snapshot: GroupSnapshot) -> ComputedTarget:
    raise RuntimeError("no wits")


async def fails_with_half_a_pair(snapshot: GroupSnapshot) -> ComputedTarget:
    raise RuntimeError("cut \udcff")


async def cancels(snapshot: GroupSnapshot) -> ComputedTarget:
    raise asyncio.CancelledError


async def hangs(snapshot: GroupSnapshot) -> ComputedTarget:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


class Returning(CooperativeAssignor):
    """A plug-in that returns what a function returns for the group."""

    name = "even"

    def __init__(self, result: Callable[[GroupSnapshot], Any]) -> None:
        super().__init__(RebalancePolicy())
        self.result = result

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        return self.result(group)  # type: ignore[no-any-return]


def plugin(result: Callable[[GroupSnapshot], Any]) -> AssignFunction:
    """The function with which the broker calls such a plug-in."""
    return assign_functions_by_name([Returning(result)])["even"]


def returns(**wrong: Any) -> AssignFunction:
    """An assignor whose target has wrong values in these fields."""
    return plugin(lambda snapshot: replace(compute(snapshot), **wrong))


def returns_target(**wrong: Any) -> AssignFunction:
    """An assignor whose target for the member has wrong values in these fields."""
    return returns(members={MemberId("w0"): TargetOfMember(**({"jobs": JOBS} | wrong))})


async def times_out(snapshot: GroupSnapshot) -> ComputedTarget:
    raise TimeoutError("the service does not respond")


class TextlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def fails_without_text(snapshot: GroupSnapshot) -> ComputedTarget:
    raise TextlessError


HALF = "\udcff"
"""Half of a surrogate pair: no encoder accepts it."""


@pytest.mark.parametrize(
    ("assign", "error"),
    [
        (fails, "RuntimeError: no wits"),
        (fails_with_half_a_pair, "RuntimeError: cut \ufffd"),
        (cancels, "the computation of the target was cancelled"),
        (hangs, "no target was computed within 45 ms"),
        (times_out, "TimeoutError: the service does not respond"),
        (fails_without_text, "TextlessError: <exception str() failed>"),
        (plugin(lambda _: None), "the assignor's result is a NoneType instead of a ComputedTarget"),
        (returns(members=[]), "in the assignor's result, members must map"),
        (returns(members={1: TargetOfMember(jobs=JOBS)}), "in the assignor's result, members must map"),
        (returns_target(jobs={"c0"}), "in the assignor's result, members must map"),
        (returns_target(version=2**15), "in the assignor's result, members must map"),
        (returns_target(metadata="text"), "in the assignor's result, members must map"),
        (returns(deferred={"w1": None}), "in the assignor's result, deferred must map"),
        (returns(deferred={"w1": DeferredJobs(jobs=JOBS, delay_ms=-1)}), "in the assignor's result, deferred must map"),
        (returns(unplaceable=(None,)), "in the assignor's result, unplaceable must be"),
        (returns(unplaceable=(UnplaceableJobs(jobs=JOBS, reason=3),)), "unplaceable must be"),  # type: ignore[arg-type]
        (returns(members={HALF: TargetOfMember(jobs=JOBS)}), "in the assignor's result, members must map"),
        (returns_target(jobs=Jobs.of([ConnectorName(HALF)])), "in the assignor's result, members must map"),
        (returns_target(jobs=Jobs.of([ConnectorTaskId(ConnectorName(HALF), 0)])), "members must map"),
        (returns_target(jobs=Jobs.of([ConnectorTaskId(ConnectorName("c0"), 2**31)])), "members must map"),
        (returns(deferred={HALF: DeferredJobs(jobs=JOBS, delay_ms=1)}), "in the assignor's result, deferred must map"),
        (returns(next_in_ms=-5), "in the assignor's result, next_in_ms is -5"),
        (returns(next_in_ms=10**5_000), "in the assignor's result, next_in_ms is an int with more than 64 bits"),
        (returns(next_in_ms="5" * 2_000), "in the assignor's result, next_in_ms is a str"),
        (returns(members={}), "c0"),
        (returns(members={MemberId("stranger"): TargetOfMember(jobs=JOBS)}), "stranger"),
        (returns(members={MemberId("s" * 2_000_000): TargetOfMember(jobs=JOBS)}), "sss"),
    ],
)
async def test_an_assignor_that_fails_or_lies_is_an_error_of_the_group(log: BrokerLog, assign: Any, error: str) -> None:
    settings = replace(QUICK_SETTINGS, computation_timeout_ms=50 if assign is hangs else 30_000)
    async with connect_groups(log, {"even": assign}, settings) as groups:
        await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        failed = await until(lambda found: bool(found.assignment_error), groups)
        assert failed.assignment_error.startswith("the coordinator's assignor even failed: ")
        assert error in failed.assignment_error
        assert len(failed.assignment_error) < 1_100
        assert failed.state is GroupState.ASSIGNING
        assert (await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)).error is ConnectErrorCode.NONE


async def test_the_reason_of_a_plug_in_is_cut_and_stored_as_text(log: BrokerLog) -> None:
    """A record with half of a surrogate pair cannot be encoded: the group would be reloaded again and again."""
    unplaceable = (UnplaceableJobs(jobs=JOBS, reason=f"cut {HALF} {'.' * 2_000}"),)
    async with connect_groups(log, {"even": returns(members={}, unplaceable=unplaceable)}) as groups:
        await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        found = await until(lambda found: found.assignment_epoch == found.group_epoch, groups)
    ((stored,), error) = found.unplaceable, found.assignment_error
    assert (stored.jobs, error) == (JOBS, "")
    assert stored.reason == f"cut \ufffd {'.' * 994}"


async def test_a_missing_assignor_is_an_error_of_the_group(log: BrokerLog) -> None:
    async with connect_groups(log) as groups:
        await beat(groups, "w0", client_assignors=None)
        failed = await until(lambda found: bool(found.assignment_error), groups)
    expected = "the broker has no assignor cooperative (group.connect.assignors); it has: none"
    assert failed.assignment_error.endswith(expected)


async def test_a_computation_ends_with_its_group(log: BrokerLog) -> None:
    began = asyncio.Event()

    async def never(snapshot: GroupSnapshot) -> ComputedTarget:
        began.set()
        return await hangs(snapshot)

    async with connect_groups(log, {"even": never}) as groups:
        await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        await began.wait()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_group_is_loaded_as_it_was(log: BrokerLog) -> None:
    async with connect_groups(log, {"even": even}) as groups:
        await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        await until(lambda found: found.assignment_epoch == found.group_epoch, groups)
        await beat(groups, "w0", **NO_CLIENT_ASSIGNORS)
        before = await described(groups)
    async with connect_groups(log, {"even": even}) as groups:
        assert groups.ids() == [GROUP]
        assert groups.reserves_group_id(GROUP)
        after = await described(groups)
        assert replace(after, members=()) == replace(before, members=())
        (member,), (known,) = after.members, before.members
        # Not stored: how far the worker has read the config topic.
        assert replace(member, config_offset=known.config_offset) == known


async def test_a_group_that_has_only_configs_owns_no_id_and_a_request_for_no_group_creates_none(
    log: BrokerLog,
) -> None:
    async with connect_groups(log) as groups:
        gone = await beat(groups, "w0", 5, owned=NO_JOBS)
        assert gone.error is ConnectErrorCode.UNKNOWN_MEMBER_ID
        assert groups.ids() == []
        configs = {"connect.session.timeout.ms": "7000"}
        await groups.ask(GROUP, lambda reply_to: SetGroupConfigs(reply_to=reply_to, configs=configs))
        assert groups.ids() == [GROUP]
        assert not groups.reserves_group_id(GROUP)
        assert not groups.reserves_group_id(GroupId("other"))
        await groups.ask(GROUP, lambda reply_to: SetGroupConfigs(reply_to=reply_to, configs={}))
        assert groups.ids() == []


async def test_requests_are_refused_while_a_group_is_reloaded(log: BrokerLog) -> None:
    async with connect_groups(log) as groups:
        await beat(groups, "w0")
        await log.run_write(fill_disk)
        lost = await beat(groups, "w1", name="n" * 60_000)
        assert lost.error is ConnectErrorCode.NOT_COORDINATOR
        refused = await beat(groups, "w1")
        assert (refused.error, refused.message) == (
            ConnectErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            "the group is being loaded from the broker's log; send the request again",
        )
        await log.run_write(lift_limit)
        found = await until(lambda found: found.error is ConnectErrorCode.NONE, groups)
        assert [one.metadata.member_id for one in found.members] == ["w0"]


async def test_a_broker_that_stops_refuses_pending_and_later_requests(log: BrokerLog) -> None:
    async with connect_groups(log) as groups:
        await beat(groups, "w0")
        pending = asyncio.create_task(beat(groups, "w0", 0, client_assignors=None, max_wait_ms=60_000))
        await asyncio.sleep(0)
        groups.refuse_all_from_now_on()
        assert (await beat(groups, "w0")).error is ConnectErrorCode.NOT_COORDINATOR
        await pending
    assert log.topics[CONNECT_TOPIC.name].configs == {"cleanup.policy": "compact"}


async def test_a_removal_that_could_not_be_written_is_not_logged(
    log: BrokerLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.broker.groups.connect_log")
    large = Jobs.of([ConnectorName("c" * 60_000)])
    configured = ConfiguredJobs(config_offset=ConfigOffset(1), jobs=large)
    numbers = count(1)

    def removal_log_lines() -> int:
        return sum("w0" in record.getMessage() for record in caplog.records)

    async with connect_groups(log, {"even": even}) as groups:

        async def beat_w0(epoch: int, **fields: Any) -> HeartbeatResponse:
            given = {"configured": configured, "request_number": next(numbers), **NO_CLIENT_ASSIGNORS, **fields}
            return await beat(groups, "w0", epoch, **given)

        joined = await beat_w0(0)
        await until(lambda found: found.assignment_epoch == found.group_epoch, groups)
        assigned = await beat_w0(joined.member_epoch)
        assert assigned.assignment is not None
        await log.run_write(fill_disk)
        assert (await beat_w0(LEAVE_BRIEFLY_EPOCH)).error is ConnectErrorCode.NOT_COORDINATOR
        assert removal_log_lines() == 0
        await log.run_write(lift_limit)
        await until(lambda found: found.error is ConnectErrorCode.NONE, groups)
        assert (await beat_w0(LEAVE_BRIEFLY_EPOCH)).error is ConnectErrorCode.NONE
        assert removal_log_lines() == 1
