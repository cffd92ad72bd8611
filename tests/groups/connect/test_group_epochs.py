"""What increases the group epoch, so that a new target is computed, and what does not: one test for each."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.groups.connect.messages import (
    ConnectionClosed,
    ConnectionGraceTimer,
    GroupState,
    RemoveMember,
    RevocationTimer,
    SessionTimer,
    TimerKey,
)
from coterie.groups.connect.state import Group
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import Claims, ConfiguredJobs
from coterie.nouns.ids import ConfigOffset, InstanceId, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import ComputedTarget, TargetOfMember
from tests.groups.connect.builders import JOBS, Conversation, assignor, short_heartbeat

PAGE = Path(__file__).parents[3] / "docs/protocol/rebalances.md"
W0, W1 = MemberId("w0"), MemberId("w1")
C0, C2 = ConnectorName("c0"), ConnectorName("c2")
NEW_CONNECTOR, NEW_TASK = Jobs.of([C2]), Jobs.of([ConnectorTaskId(C0, 2)])
OLD_CONNECTOR = Jobs.of([C0, ConnectorTaskId(C0, 0), ConnectorTaskId(C0, 1)])
OLD_TASK = Jobs.of([ConnectorTaskId(C0, 1)])


def settled() -> Conversation:
    """A settled group of w0, which leads, and w1, at the group epoch 2."""
    conversation = Conversation()
    conversation.settle("w0", "w1")
    assert group_of(conversation).group_epoch == 2
    return conversation


def group_of(conversation: Conversation) -> Group:
    return conversation.coordinator.group


def is_computing(conversation: Conversation) -> bool:
    """Whether a new target is needed or being computed."""
    group = group_of(conversation)
    return group.group_epoch > group.assignment_epoch


# -- what a heartbeat changes ------------------------------------------------------------------------------------------

BUMPS: Mapping[str, Mapping[str, Any]] = {
    "assignors": {"client_assignors": (assignor(newest=2),)},
    "metadata": {"client_assignors": (assignor(metadata=b"new"),)},
    "a reason": {"client_assignors": (assignor(reason=3),)},
    "claims": {"claims": Claims(jobs=NO_JOBS)},
    "a drain": {"draining": True},
}
NO_BUMPS: Mapping[str, Mapping[str, Any]] = {
    "the URL": {"url": WorkerUrl("http://elsewhere")},
    "the name": {"name": "other"},
    "the config offset": {"config_offset": ConfigOffset(9)},
    "the rebalance timeout": {"rebalance_timeout_ms": 5},
    "the grace": {"connection_grace_ms": 5},
    "no owned job": {"owned": NO_JOBS},
    "nothing": {},
}


@pytest.mark.parametrize("fields", BUMPS.values(), ids=BUMPS.keys())
def test_a_change_that_concerns_the_target_increases_the_group_epoch_once(fields: Mapping[str, Any]) -> None:
    conversation = settled()
    conversation.ask(short_heartbeat("w1", 2, **fields))
    assert group_of(conversation).group_epoch == 3
    again = {name: value for name, value in fields.items() if name != "client_assignors"}
    conversation.ask(short_heartbeat("w1", 2, **again))
    assert group_of(conversation).group_epoch == 3


@pytest.mark.parametrize("fields", NO_BUMPS.values(), ids=NO_BUMPS.keys())
def test_other_changes_do_not_increase_the_group_epoch(fields: Mapping[str, Any]) -> None:
    conversation = settled()
    conversation.ask(short_heartbeat("w1", 2, **fields))
    assert (group_of(conversation).group_epoch, is_computing(conversation)) == (2, False)


def first_columns(text: str) -> list[list[str]]:
    """The first column of each table in ``text``, without the title."""
    tables = re.findall(r"^\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [re.findall(r"^\| `?(.+?)`? \|", rows, re.MULTILINE) for rows in tables]


def test_the_page_lists_these_changes_and_each_state() -> None:
    increases, others, group_states, worker_states = first_columns(PAGE.read_text())
    assert [one for one in increases if one in BUMPS] == [*BUMPS]
    assert [one for one in others if one in NO_BUMPS] == [one for one in NO_BUMPS if one != "nothing"]
    assert group_states == [*GroupState]
    assert sorted(worker_states) == sorted(MemberState)


# -- the configured jobs -----------------------------------------------------------------------------------------------

CONFIGURED: Mapping[str, Jobs] = {
    "a connector is added": JOBS | NEW_CONNECTOR,
    "a connector is removed with its tasks": JOBS - OLD_CONNECTOR,
    "a task is added": JOBS | NEW_TASK,
    "a task is removed": JOBS - OLD_TASK,
}


@pytest.mark.parametrize("jobs", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_a_change_of_the_configured_jobs_increases_the_group_epoch_once(jobs: Jobs) -> None:
    conversation = settled()
    for offset in (2, 2, 3):
        configured = ConfiguredJobs(config_offset=ConfigOffset(offset), jobs=jobs)
        conversation.ask(short_heartbeat("w0", 2, configured=configured))
        assert (group_of(conversation).group_epoch, is_computing(conversation)) == (3, True)
        assert group_of(conversation).configured_jobs == jobs


# -- members that go ---------------------------------------------------------------------------------------------------


def fire(conversation: Conversation, timer: TimerKey) -> None:
    """Let the time of ``timer`` come. A session's timer is set again if the session was renewed meanwhile."""
    while timer in group_of(conversation).deadlines:
        conversation.now_ms = group_of(conversation).deadlines[timer]
        conversation.beat("w0", group_of(conversation).currents[W0].member_epoch, owned=None)
        conversation.coordinator.handle(TimerFired(key=timer), conversation.now_ms)


def remove_by_operator(conversation: Conversation) -> None:
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=W1))


def end_session(conversation: Conversation) -> None:
    fire(conversation, SessionTimer(member_id=W1))


def close_connection(conversation: Conversation) -> None:
    conversation.ask(short_heartbeat("w1", 2, connection_number=5, connection_grace_ms=2_000))
    closed = ConnectionClosed(connection_number=5, member_ids=(W1,))
    conversation.coordinator.handle(closed, conversation.now_ms)
    assert group_of(conversation).group_epoch == 2, "the grace has only begun"
    fire(conversation, ConnectionGraceTimer(member_id=W1))


@pytest.mark.parametrize("end", [remove_by_operator, end_session, close_connection])
def test_the_end_of_a_membership_increases_the_group_epoch_once(end: Callable[[Conversation], None]) -> None:
    conversation = settled()
    end(conversation)
    assert group_of(conversation).members.keys() == {"w0"}
    assert (group_of(conversation).group_epoch, is_computing(conversation)) == (3, True)
    assert conversation.beat("w1", 2, owned=None).error is ConnectErrorCode.UNKNOWN_MEMBER_ID
    assert group_of(conversation).group_epoch == 3


def revoke_all_jobs_of_w1(conversation: Conversation) -> Jobs:
    """The coordinator revokes all jobs of w1, whose rebalance timeout is 5 s; returns these jobs."""
    had = group_of(conversation).currents[W1].assigned
    conversation.ask(short_heartbeat("w1", 2, draining=True, rebalance_timeout_ms=5_000))
    conversation.compute("w0", ComputedTarget(members={W0: TargetOfMember(jobs=JOBS)}))
    assert conversation.beat("w1", 2, owned=had, draining=True, rebalance_timeout_ms=5_000).assignment is not None
    assert group_of(conversation).currents[W1].pending == had
    assert (group_of(conversation).group_epoch, is_computing(conversation)) == (3, False)
    return had


def test_a_removal_by_the_rebalance_timeout_increases_the_group_epoch_once() -> None:
    conversation = settled()
    revoke_all_jobs_of_w1(conversation)
    fire(conversation, RevocationTimer(member_id=W1))
    assert group_of(conversation).members.keys() == {"w0"}
    assert (group_of(conversation).group_epoch, is_computing(conversation)) == (4, True)


# -- what increases nothing --------------------------------------------------------------------------------------------


def test_owned_jobs_that_become_fewer_do_not_increase_the_group_epoch() -> None:
    """They acknowledge a revocation one job after the other, until the jobs have moved."""
    conversation = settled()
    left = revoke_all_jobs_of_w1(conversation)
    for job in left:
        left -= Jobs.of([job])
        conversation.ask(short_heartbeat("w1", 2, owned=left))
        assert (group_of(conversation).group_epoch, is_computing(conversation)) == (3, False)
    conversation.beat("w0", 2, owned=None)
    assert group_of(conversation).currents[W0].assigned == JOBS
    assert group_of(conversation).group_epoch == 3


def test_another_leader_does_not_increase_the_group_epoch() -> None:
    """A static leader that leaves for a short time stays in the group, so only the leader changes; so it does when it
    has returned and the other one leaves for a short time."""
    conversation = Conversation()
    statics = {"w0": InstanceId("i0"), "w1": InstanceId("i1")}
    for member, instance_id in statics.items():
        conversation.beat(member, instance_id=instance_id)
    conversation.compute("w0")
    for member, instance_id in statics.items():
        conversation.beat(member, instance_id=instance_id)
    leaders = []
    for member, other in (("w0", "w1"), ("w1", "w0")):
        assert conversation.beat(member, -2, instance_id=statics[member]).error is ConnectErrorCode.NONE
        conversation.beat(other, 2, owned=None, instance_id=statics[other])
        leaders.append((group_of(conversation).leader, group_of(conversation).leader_epoch))
        assert (group_of(conversation).group_epoch, is_computing(conversation)) == (2, False)
        conversation.beat(member, instance_id=statics[member])
        assert (group_of(conversation).group_epoch, is_computing(conversation)) == (2, False)
    assert leaders == [("w1", 2), ("w0", 3)]
