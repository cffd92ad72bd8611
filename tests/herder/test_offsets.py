"""Offsets: any worker reads them; the leader changes those of a stopped connector, and ends a change that is no longer
allowed."""

import pytest

from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfigLines,
    ApplyOffsetChange,
    ConfigLogEndLookupEnded,
    FindConfigLogEnd,
    OffsetChangeEnded,
    OffsetReadEnded,
    ReadConnectorOffsets,
    StopConnector,
    TimerFired,
    ValidateConfig,
)
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.reads import ConnectorOffsets, DescribeConnectorOffsets
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import ChangeOffsets, PutConnector, WrittenConnector
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.connector_offsets import RESET_OFFSETS, ConnectorOffset, OffsetChange
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import MembershipLost
from coterie.nouns.states import TargetState
from tests.herder.builders import CONFIG, ORDERS, ORDERS_TASK_CONFIGS, configured_herder
from tests.herder.herder_driver import ME, OTHER, HerderDriver, lease_renewed

STOP = (
    *config_records.task_config_and_commit_lines(ORDERS, ()),
    config_records.target_state_line(ORDERS, TargetState.STOPPED),
)
RESUME = config_records.target_state_line(ORDERS, TargetState.STARTED)
OFFSET = ConnectorOffset(partition={"file": "a"}, offset={"position": 4})
CHANGE = OffsetChange(offsets=(OFFSET,))


def leader(*lines: NewTopicRecord) -> HerderDriver:
    """A leader with a valid lease and a connector with tasks, after ``lines``."""
    herder = configured_herder(*lines)
    herder.assign(leader=ME)
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    return herder


def begin(herder: HerderDriver) -> tuple[RequestId, ApplyOffsetChange]:
    """Send a change, up to the chore of the runtime."""
    id_ = herder.send_request(ChangeOffsets(connector=ORDERS, change=CHANGE))
    read_to_end(herder)
    (change,) = herder.pop_effects(ApplyOffsetChange)
    return id_, change


def read_to_end(herder: HerderDriver) -> None:
    """Let the herder read the config log to its end, as a request needs it, and validate its config."""
    for lookup in herder.pop_effects(FindConfigLogEnd):
        herder.run_chore(lookup)
    for validation in herder.pop_effects(ValidateConfig):
        herder.run_chore(validation)


def refusal(herder: HerderDriver, id_: RequestId) -> tuple[Problem, str]:
    answer = herder.answer(id_)
    assert isinstance(answer, RequestRefused), answer
    return answer.problem, answer.message


def test_a_follower_reads_offsets_from_the_checkpoints() -> None:
    herder = configured_herder()
    herder.assign(leader=OTHER)
    id_ = herder.send_request(DescribeConnectorOffsets(connector=ORDERS))
    read_to_end(herder)
    (read,) = herder.pop_effects(ReadConnectorOffsets)
    assert (read.connector, read.config) == (ORDERS, CONFIG)
    assert herder.answer(id_) is None
    herder.feed(OffsetReadEnded(id=id_, offsets=(OFFSET,)))
    assert herder.answer(id_) == ConnectorOffsets(offsets=(OFFSET,))


@pytest.mark.parametrize("is_log_reachable", [True, False])
def test_a_worker_that_has_never_joined_a_group_reads_offsets(*, is_log_reachable: bool) -> None:
    herder = configured_herder()
    assert not herder.herder.place.leader_url
    id_ = herder.send_request(DescribeConnectorOffsets(connector=ORDERS))
    if is_log_reachable:
        read_to_end(herder)
    else:
        (lookup,) = herder.pop_effects(FindConfigLogEnd)
        herder.feed(ConfigLogEndLookupEnded(purpose=lookup.purpose, end_offset=None))
    (read,) = herder.pop_effects(ReadConnectorOffsets)
    assert (read.connector, read.config) == (ORDERS, CONFIG)
    herder.feed(OffsetReadEnded(id=id_, offsets=(OFFSET,)))
    assert herder.answer(id_) == ConnectorOffsets(offsets=(OFFSET,))


def test_a_read_of_offsets_fails_or_times_out_with_the_reason() -> None:
    herder = configured_herder()
    ids = [herder.send_request(DescribeConnectorOffsets(connector=ORDERS)) for _ in range(2)]
    read_to_end(herder)
    herder.feed(OffsetReadEnded(id=ids[0], failure="no such folder"))
    assert refusal(herder, ids[0]) == (Problem.OFFSETS_FAILED, "no such folder")
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=ids[1])))
    problem, message = refusal(herder, ids[1])
    assert (problem, "reading the offsets of connector orders" in message) == (Problem.TIMED_OUT, True)
    herder.feed(OffsetReadEnded(id=ids[1]))  # Late: the request was answered.


def test_offsets_of_an_unknown_connector_are_not_found() -> None:
    herder = leader()
    name = ConnectorName("nope")
    ids = [
        herder.send_request(DescribeConnectorOffsets(connector=name)),
        herder.send_request(ChangeOffsets(connector=name, change=RESET_OFFSETS)),
    ]
    herder.run_all_chores()
    assert [refusal(herder, id_) for id_ in ids] == [(Problem.NOT_FOUND, "Connector nope not found")] * 2


def test_the_leader_changes_the_offsets_of_a_stopped_connector_and_writes_nothing() -> None:
    herder = leader(*STOP)
    id_, change = begin(herder)
    assert (change.connector, change.config, change.change) == (ORDERS, CONFIG, CHANGE)
    assert list(change.configs_of_checkpointed_tasks) == ORDERS_TASK_CONFIGS
    assert herder.answer(id_) is None
    herder.feed(OffsetChangeEnded(id=id_))
    assert herder.answer(id_) == SuccessWithoutContent()
    assert not herder.pop_effects(AppendConfigLines)


@pytest.mark.parametrize("lines", [(), (config_records.target_state_line(ORDERS, TargetState.PAUSED),)])
def test_the_offsets_of_a_connector_that_is_not_stopped_are_not_changed(
    lines: tuple[NewTopicRecord, ...],
) -> None:
    herder = leader(*lines)
    id_ = herder.send_request(ChangeOffsets(connector=ORDERS, change=CHANGE))
    herder.run_all_chores()
    problem, message = refusal(herder, id_)
    assert problem is Problem.BAD_REQUEST
    assert message == (
        "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
        "specified connector by issuing a 'PUT' request to the '/connectors/orders/stop' endpoint"
    )


def test_a_follower_sends_a_change_to_the_leader() -> None:
    herder = configured_herder(*STOP)
    herder.assign(leader=OTHER)
    id_ = herder.send_request(ChangeOffsets(connector=ORDERS, change=CHANGE))
    herder.run_all_chores()
    assert refusal(herder, id_)[0] is Problem.NOT_LEADER


def test_a_leader_whose_membership_is_not_confirmed_changes_nothing() -> None:
    herder = configured_herder(*STOP)
    herder.assign(leader=ME)
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    herder.now_ms += 60_000
    id_ = herder.send_request(ChangeOffsets(connector=ORDERS, change=CHANGE))
    read_to_end(herder)
    assert refusal(herder, id_)[0] is Problem.NO_LEADER
    assert not herder.pop_effects(ApplyOffsetChange)


def test_a_change_delays_no_other_write() -> None:
    herder = leader(*STOP)
    begin(herder)
    id_ = herder.send_request(PutConnector(connector=ConnectorName("other"), config=CONFIG, may_replace=False))
    herder.run_all_chores()
    assert isinstance(herder.answer(id_), WrittenConnector)


@pytest.mark.parametrize("reason", ["resumed", "deleted", "membership lost"])
def test_a_change_that_is_no_longer_allowed_is_ended_once(reason: str) -> None:
    herder = leader(*STOP)
    id_, _ = begin(herder)
    herder.pop_effects(StopConnector)
    match reason:
        case "resumed":
            herder.write(RESUME)
        case "deleted":
            herder.write(*config_records.connector_and_target_state_tombstones(ORDERS))
        case _:
            herder.feed(MembershipLost(reason="the session has ended"))
    assert herder.pop_effects(StopConnector) == [StopConnector(connector=ORDERS)]
    herder.write(RESUME)
    assert not herder.pop_effects(StopConnector)
    herder.feed(
        OffsetChangeEnded(
            id=id_, refusal=RequestRefused(problem=Problem.OFFSETS_FAILED, message="the change was ended")
        )
    )
    assert refusal(herder, id_) == (Problem.OFFSETS_FAILED, "the change was ended")


def test_a_change_that_takes_too_long_is_answered_and_continues() -> None:
    herder = leader(*STOP)
    id_, _ = begin(herder)
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=id_)))
    problem, message = refusal(herder, id_)
    assert (problem, message) == (
        Problem.TIMED_OUT,
        "Request timed out. The worker is currently modifying offsets for connector orders, which began at "
        "2026-11-21T02:39:26.406Z.",
    )
    herder.feed(OffsetChangeEnded(id=id_))
    assert len([effect for effect in herder.effects if getattr(effect, "id", None) == id_]) == 1


def test_the_initial_offsets_are_set_before_the_connector_is_written() -> None:
    herder = leader()
    name = ConnectorName("new")
    id_ = herder.send_request(PutConnector(connector=name, config=CONFIG, may_replace=False, initial_offsets=CHANGE))
    read_to_end(herder)
    (change,) = herder.pop_effects(ApplyOffsetChange)
    assert (change.connector, change.incarnation) == (name, f"incarnation-{id_}")
    assert herder.herder.config.connector(name) is None
    herder.feed(OffsetChangeEnded(id=id_))
    herder.run_all_chores()
    connector = herder.herder.config.connector(name)
    assert connector is not None
    assert connector.incarnation == change.incarnation
    answer = herder.answer(id_)
    assert isinstance(answer, WrittenConnector)
    assert (answer.created, answer.has_set_offsets) == (True, True)


def test_a_connector_with_refused_initial_offsets_is_not_created() -> None:
    herder = leader()
    name = ConnectorName("new")
    id_ = herder.send_request(PutConnector(connector=name, config=CONFIG, may_replace=False, initial_offsets=CHANGE))
    read_to_end(herder)
    herder.feed(OffsetChangeEnded(id=id_, refusal=RequestRefused(problem=Problem.BAD_REQUEST, message="no such file")))
    assert refusal(herder, id_) == (Problem.BAD_REQUEST, "no such file")
    herder.run_all_chores()
    assert herder.herder.config.connector(name) is None


def test_initial_offsets_of_a_connector_that_exists_are_not_set() -> None:
    herder = leader()
    id_ = herder.send_request(PutConnector(connector=ORDERS, config=CONFIG, may_replace=False, initial_offsets=CHANGE))
    read_to_end(herder)
    assert not herder.pop_effects(ApplyOffsetChange)
    herder.run_all_chores()
    assert refusal(herder, id_)[0] is Problem.ALREADY_EXISTS
