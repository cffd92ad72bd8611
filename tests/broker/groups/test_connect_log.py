"""What the broker's log contains of connect groups."""

import logging
from typing import Any

import pytest

from coterie.broker.groups.connect_log import log_member_removals_and_computation_errors
from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import (
    ComputeTarget,
    Event,
    NextComputationTimer,
    RemoveMember,
    RevocationTimer,
    SessionTimer,
    TargetComputed,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_groups import ConfiguredJobs
from coterie.nouns.ids import ConfigOffset, GroupId, MemberId, ReplyTo
from coterie.nouns.jobs import Jobs
from tests.groups.connect.builders import JOBS, assignor, heartbeat
from tests.groups.connect.simple_assignor import compute
from tests.groups.connect.world import jobs_of

W0, W1 = MemberId("w0"), MemberId("w1")


class Logged:
    """A group of which the coordinator computes the targets, and whose steps are logged."""

    def __init__(self, *server_assignors: str) -> None:
        settings = ConnectGroupSettings(
            assignment_interval_ms=0, initial_rebalance_delay_ms=0, server_assignors=server_assignors
        )
        self.group = Group(GroupId("workers"), settings)
        self.now_ms = 1_000

    def handle(self, event: Event) -> None:
        before = self.group.metadata
        output = step(self.group, event, now_ms=self.now_ms)
        log_member_removals_and_computation_errors(self.group.group_id, event, output, before)
        for effect in output.effects:
            if isinstance(effect, ComputeTarget):
                self.handle(TargetComputed(group_epoch=effect.snapshot.group_epoch, target=compute(effect.snapshot)))

    def beat(self, member: MemberId, epoch: int | None = None, **fields: Any) -> None:
        current = self.group.currents.get(member)
        known = 0 if current is None else current.member_epoch
        request = heartbeat(member, known if epoch is None else epoch, **fields)
        self.handle(request)


def test_a_member_that_is_too_slow_is_logged_with_the_setting_to_change(caplog: pytest.LogCaptureFixture) -> None:
    logged = Logged("eager")
    by_coordinator: dict[str, Any] = {
        "client_assignors": None,
        "server_assignor": "eager",
        "rebalance_timeout_ms": 3_000,
    }
    logged.beat(W0, **by_coordinator)
    logged.beat(W0, **by_coordinator)
    logged.beat(W1, **by_coordinator)
    logged.beat(W0, owned=JOBS, **by_coordinator)
    logged.now_ms += 3_000
    logged.handle(TimerFired(key=RevocationTimer(member_id=W0)))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    assert text.startswith("Group workers: the member w0 (http://w0) was removed: it has not given back ")
    assert "rebalance.timeout.ms must be longer" in text
    assert (
        "6 jobs may still run on the worker of this member, and no other worker starts them before the end of the "
        "member's session" in text
    )


@pytest.mark.parametrize(
    ("epoch", "jobs", "what_has_happened"),
    [
        (
            -2,
            JOBS,
            "has left the group and may return: its worker has stopped. 6 jobs wait for the member's return, for at "
            "most scheduled.rebalance.max.delay.ms, and then can move to other workers",
        ),
        (
            -2,
            jobs_of(1, 0),
            "has left the group and may return: its worker has stopped. 1 job waits for the member's return, for at "
            "most scheduled.rebalance.max.delay.ms, and then can move to other workers",
        ),
        (
            -1,
            JOBS,
            "has left the group permanently: its worker was drained. No job waits for the member's return",
        ),
    ],
)
def test_a_member_that_leaves_by_itself_is_no_warning(
    epoch: int, jobs: Jobs, what_has_happened: str, caplog: pytest.LogCaptureFixture
) -> None:
    logged = Logged("eager")
    configured = ConfiguredJobs(config_offset=ConfigOffset(1), jobs=jobs)
    for _ in range(2):
        logged.beat(W0, client_assignors=None, server_assignor="eager", configured=configured)
    with caplog.at_level(logging.INFO):
        logged.beat(W0, epoch)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == f"Group workers: the member w0 (http://w0) {what_has_happened}"


@pytest.mark.parametrize(
    ("removal", "reason"),
    [
        (TimerFired(key=SessionTimer(member_id=W0)), "for 10000 ms (its session timeout) it sent no request that the"),
        (RemoveMember(reply_to=ReplyTo(9), member_id=W0, instance_id=None), "an operator has removed it"),
    ],
)
def test_the_removal_of_a_member_without_jobs_is_logged(
    removal: Event, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    logged = Logged()
    logged.beat(W0)
    logged.now_ms += 10_000
    logged.handle(removal)
    assert not logged.group.members
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    assert text.startswith(f"Group workers: the member w0 (http://w0) was removed: {reason}")
    assert text.endswith(". No job waits for the member's return")


def test_the_versions_are_logged_once_if_no_member_reads_all(caplog: pytest.LogCaptureFixture) -> None:
    logged = Logged()
    logged.beat(W0)
    logged.beat(W1, client_assignors=(assignor(newest=1),))
    logged.beat(MemberId("w2"), client_assignors=(assignor(oldest=2),))
    logged.beat(W0, -1)
    for _ in range(3):
        logged.now_ms = logged.group.deadlines[NextComputationTimer()]
        logged.handle(TimerFired(key=NextComputationTimer()))
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Group workers: no target assignment was computed, the assignments stay as they are; will retry: no present "
        "member's assignor cooperative reads the metadata versions of all members (w1: 0 to 1, w2: 2 to 3)"
    )
