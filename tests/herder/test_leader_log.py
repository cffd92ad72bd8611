"""The right to write as the leader: opened, confirmed by a heartbeat sent afterwards, lost, and opened again."""

import pytest

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfigLines,
    AppendForWrites,
    ApplyOffsetChange,
    ConfigLinesAppendFailed,
    FindConfigLogEnd,
    LeaderLogOpened,
    LeaderLogOpenFailed,
    MakeSessionKey,
    OpenLeaderLog,
    TimerFired,
    ValidateConfig,
    WriteLogMessage,
)
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import (
    ChangeOffsets,
    DeleteConnector,
    DeletedConnector,
    IfMatch,
    PatchConnector,
    PutTaskConfigs,
    RestartConnector,
    SetTargetState,
    Write,
)
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.connector_offsets import OffsetChange
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import ConfirmLeadership, LeadershipConfirmed, LeaseRenewed, MembershipLost
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import CONFIG, DELETED, INCARNATION, ORDERS, ORDERS_TASK_CONFIGS, configured_herder
from tests.herder.herder_driver import ME, ROUND, HerderDriver

OTHER = ConnectorName("other")
OTHER_LINE = config_records.connector_line(OTHER, CONFIG, INCARNATION)


def leader() -> HerderDriver:
    """A worker that has just become the leader, and whose log is being opened."""
    herder = configured_herder()
    herder.confirms_leadership = False
    herder.assign(leader=ME)
    return herder


def open_log(herder: HerderDriver) -> ConfirmLeadership:
    """The log is opened; returns the order to confirm the leadership."""
    (opening,) = herder.pop_effects(OpenLeaderLog)
    herder.feed(LeaderLogOpened(opening_number=opening.opening_number))
    (order,) = herder.pop_effects(ConfirmLeadership)
    return order


def confirm(herder: HerderDriver) -> None:
    herder.feed(LeadershipConfirmed(token=open_log(herder).token))


def run_appends(herder: HerderDriver) -> None:
    """Let the lookups of the log's end and the appends succeed, until there is none."""
    while lookups := herder.pop_effects(FindConfigLogEnd):
        for lookup in lookups:
            herder.run_chore(lookup)
        for append in herder.pop_effects(AppendConfigLines):
            herder.run_chore(append)


def test_a_leader_writes_nothing_before_a_heartbeat_has_confirmed_it_after_the_opening() -> None:
    herder = leader()
    id_ = herder.send_request(DeleteConnector(connector=ORDERS))
    assert not herder.pop_effects(FindConfigLogEnd), "the log's end is looked up after the opening"
    order = open_log(herder)
    assert not herder.pop_effects(FindConfigLogEnd)
    herder.feed(LeadershipConfirmed(token=order.token - 1))
    assert not herder.pop_effects(FindConfigLogEnd), "the confirmation of an earlier opening proves nothing"
    herder.feed(LeadershipConfirmed(token=order.token))
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    (append,) = herder.pop_effects(AppendConfigLines)
    assert append.leader_log_opening_number == order.token
    herder.run_chore(append)
    assert herder.answer(id_) == DELETED


def test_the_time_limit_of_a_transaction_is_the_session_timeout() -> None:
    """An open transaction hides all later lines, so no transaction may stay open for longer than its writer is a
    member."""
    herder = configured_herder()
    herder.confirms_leadership = False
    herder.feed(LeaseRenewed(lease_ends_ms=10**9, session_timeout_ms=12_345))
    herder.assign(leader=ME)
    (opening,) = herder.pop_effects(OpenLeaderLog)
    assert opening.transaction_timeout_ms == 12_345


def test_a_target_state_is_written_without_the_right_of_the_leader() -> None:
    herder = configured_herder()
    herder.confirms_leadership = False
    herder.assign()
    herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED))
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    (append,) = herder.pop_effects(AppendConfigLines)
    assert append.leader_log_opening_number is None
    assert not herder.pop_effects(OpenLeaderLog)


def test_a_target_state_overtakes_writes_that_wait_for_the_right_of_the_leader() -> None:
    herder = leader()
    herder.write(OTHER_LINE)
    waiting = herder.send_request(DeleteConnector(connector=ORDERS))
    same = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED))
    other = herder.send_request(SetTargetState(connector=OTHER, target_state=TargetState.PAUSED))
    run_appends(herder)
    assert herder.answer(other) == SuccessWithoutContent()
    assert (herder.answer(waiting), herder.answer(same)) == (None, None), "the changes of a connector keep their order"
    late = herder.send_request(DeleteConnector(connector=OTHER))
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=late)))
    refusal = herder.answer(late)
    assert isinstance(refusal, RequestRefused)
    assert "reclaiming write privileges for the config topic" in refusal.message
    confirm(herder)
    run_appends(herder)
    assert herder.answer(waiting) == DELETED
    refusal = herder.answer(same)
    assert isinstance(refusal, RequestRefused)
    assert refusal.problem is Problem.NOT_FOUND


def test_a_target_state_overtakes_a_write_that_had_begun_when_the_leader_became_unknown() -> None:
    herder = configured_herder(OTHER_LINE)
    herder.assign(leader=ME)
    herder.run_all_chores()
    deletion = herder.send_request(DeleteConnector(connector=ORDERS))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.assign(leader=MemberId(""), leader_url=WorkerUrl(""))
    herder.run_chore(lookup)
    pause = herder.send_request(SetTargetState(connector=OTHER, target_state=TargetState.PAUSED))
    run_appends(herder)
    assert herder.answer(pause) == SuccessWithoutContent()
    assert herder.answer(deletion) is None
    herder.assign(leader=ME)
    herder.run_all_chores()
    assert herder.answer(deletion) == DELETED


def test_a_fenced_write_begins_again_after_the_log_was_opened_again_and_read_to_its_end() -> None:
    herder = leader()
    id_ = herder.send_request(DeleteConnector(connector=ORDERS))
    confirm(herder)
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.feed(
        ConfigLinesAppendFailed(
            purpose=append.purpose,
            reason="fenced",
            leader_log_opening_number=append.leader_log_opening_number,
            is_fenced=True,
        )
    )
    assert herder.answer(id_) is None
    assert not herder.pop_effects(FindConfigLogEnd)
    confirm(herder)
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    (again,) = herder.pop_effects(AppendConfigLines)
    assert (again.lines, again.leader_log_opening_number) == (append.lines, 2)
    herder.run_chore(again)
    assert herder.answer(id_) == DELETED


def test_an_append_with_unknown_result_is_refused_and_the_log_is_opened_again() -> None:
    herder = leader()
    id_ = herder.send_request(DeleteConnector(connector=ORDERS))
    confirm(herder)
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.feed(
        ConfigLinesAppendFailed(
            purpose=append.purpose, reason="no response", leader_log_opening_number=append.leader_log_opening_number
        )
    )
    answer = herder.answer(id_)
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.LOG_FAILED
    assert len(herder.pop_effects(OpenLeaderLog)) == 1


def test_a_write_that_read_the_log_before_the_log_was_opened_again_reads_it_again() -> None:
    herder = leader()
    confirm(herder)
    herder.send_request(DeleteConnector(connector=ORDERS))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.assign()
    herder.assign(leader=ME)
    confirm(herder)
    herder.run_chore(lookup)
    assert not herder.pop_effects(AppendConfigLines), "another leader may have written since the lookup"
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    assert len(herder.pop_effects(AppendConfigLines)) == 1


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_former_leader_whose_log_is_opened_late_may_not_write(is_lost: bool) -> None:
    herder = leader()
    (opening,) = herder.pop_effects(OpenLeaderLog)
    herder.feed(MembershipLost(reason="paused")) if is_lost else herder.assign()
    herder.feed(LeaderLogOpened(opening_number=opening.opening_number))
    assert not herder.pop_effects(ConfirmLeadership)
    herder.feed(LeadershipConfirmed(token=opening.opening_number))
    assert herder.herder.leader_log.writable_opening_number is None
    herder.assign(leader=ME)
    assert [order.opening_number for order in herder.pop_effects(OpenLeaderLog)] == [2], (
        "a new leader opens the log itself"
    )


def test_a_leader_keeps_its_right_over_a_rebalance_that_it_leads() -> None:
    herder = leader()
    confirm(herder)
    herder.assign(leader=ME)
    assert not herder.pop_effects(OpenLeaderLog)
    assert herder.herder.leader_log.writable_opening_number == 1


def test_a_log_that_cannot_be_opened_is_opened_again_and_each_reason_is_logged_once() -> None:
    herder = leader()
    for reason in ("no broker", "no broker", "no right"):
        (opening,) = herder.pop_effects(OpenLeaderLog)
        herder.feed(LeaderLogOpenFailed(opening_number=opening.opening_number, reason=reason))
        assert not herder.pop_effects(OpenLeaderLog)
        herder.now_ms += 1_000
        herder.feed(TimerFired(timer="leader log"))
    warnings = [message.text for message in herder.pop_effects(WriteLogMessage) if message.is_warning]
    assert [text.rpartition(": ")[2] for text in warnings] == ["no broker", "no right"]


def test_a_session_key_is_written_with_the_right_of_the_leader() -> None:
    herder = configured_herder()
    herder.confirms_leadership = False
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert not herder.pop_effects(MakeSessionKey)
    confirm(herder)
    herder.run_chore(herder.pop_effects(MakeSessionKey)[0])
    (append,) = herder.pop_effects(AppendConfigLines)
    assert append.leader_log_opening_number == 1


# -- appends without a lookup of the log's end ------------------------------------------------------------------------

STOP_LINES = (
    *config_records.task_config_and_commit_lines(ORDERS, ()),
    config_records.target_state_line(ORDERS, TargetState.STOPPED),
)
PATCH = PatchConnector(connector=ORDERS, patch={"a": "1"})
RESTART = RestartConnector(connector=ORDERS, include_tasks=True, only_failed=False)
RESTART_OTHER = RestartConnector(connector=OTHER, include_tasks=True, only_failed=False)


def leader_that_has_read_the_log() -> HerderDriver:
    """A leader of two connectors that has written a line after it has opened its log."""
    herder = configured_herder(OTHER_LINE)
    herder.confirms_leadership = False
    herder.assign(leader=ME)
    confirm(herder)
    herder.send_request(RESTART)
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.run_chore(lookup)
    herder.run_chore(herder.pop_effects(AppendConfigLines)[0])
    return herder


def fail(
    append: AppendConfigLines, *, is_fenced: bool = False, are_lines_discarded: bool = False
) -> ConfigLinesAppendFailed:
    """The event for an append that has failed."""
    return ConfigLinesAppendFailed(
        purpose=append.purpose,
        reason="failed",
        leader_log_opening_number=append.leader_log_opening_number,
        is_fenced=is_fenced,
        are_lines_discarded=are_lines_discarded,
    )


@pytest.mark.parametrize(
    "write",
    [
        RESTART,
        DeleteConnector(connector=ORDERS),
        SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED),
        PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS),
    ],
)
def test_a_leader_that_has_read_the_log_since_the_opening_appends_without_a_lookup(write: Write) -> None:
    herder = leader_that_has_read_the_log()
    herder.send_request(write)
    assert not herder.pop_effects(FindConfigLogEnd)
    assert [append.leader_log_opening_number for append in herder.pop_effects(AppendConfigLines)] == [1]


@pytest.mark.parametrize("is_fenced", [True, False])
def test_after_a_failed_append_the_next_write_reads_the_log_again(is_fenced: bool) -> None:
    herder = leader_that_has_read_the_log()
    herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.feed(fail(append, is_fenced=is_fenced))
    herder.send_request(RESTART_OTHER)
    confirm(herder)
    assert not herder.pop_effects(AppendConfigLines)
    assert len(herder.pop_effects(FindConfigLogEnd)) == 1


def test_after_a_rebalance_the_next_write_reads_the_log_again_under_the_same_opening() -> None:
    """In the rebalance a worker that writes without the fence may have been the leader."""
    herder = leader_that_has_read_the_log()
    herder.feed(ROUND)
    herder.assign(leader=ME)
    assert not herder.pop_effects(OpenLeaderLog)
    herder.send_request(RESTART)
    assert not herder.pop_effects(AppendConfigLines)
    assert len(herder.pop_effects(FindConfigLogEnd)) == 1


def test_a_lookup_from_before_a_rebalance_serves_only_its_own_write() -> None:
    herder = leader()
    herder.write(OTHER_LINE)
    confirm(herder)
    herder.send_request(RESTART)
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.feed(ROUND)
    herder.assign(leader=ME)
    herder.run_chore(lookup)
    herder.run_chore(herder.pop_effects(AppendConfigLines)[0])
    herder.send_request(RESTART_OTHER)
    assert len(herder.pop_effects(FindConfigLogEnd)) == 1


@pytest.mark.parametrize(
    "write",
    [
        SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED),
        ChangeOffsets(connector=ORDERS, change=OffsetChange(offsets=(), removes_others=True)),
    ],
)
def test_a_write_that_needs_no_leader_and_a_change_of_offsets_always_look_up_the_end(write: Write) -> None:
    herder = leader_that_has_read_the_log()
    herder.write(*STOP_LINES)
    herder.send_request(write)
    assert len(herder.pop_effects(FindConfigLogEnd)) == 1
    assert not herder.pop_effects(AppendConfigLines)
    assert not herder.pop_effects(ApplyOffsetChange)


def test_a_line_of_another_worker_that_is_not_read_yet_can_permit_a_write() -> None:
    """Another worker has resumed the connector: the leader has not read this line when the task configs arrive."""
    herder = leader_that_has_read_the_log()
    herder.write(*STOP_LINES)
    resume = config_records.target_state_line(ORDERS, TargetState.STARTED)
    herder.write(resume, read=False)
    id_ = herder.send_request(PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS))
    assert herder.answer(id_) is None
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    herder.read_last_line()
    herder.run_chore(herder.pop_effects(AppendConfigLines)[0])
    assert herder.answer(id_) == SuccessWithoutContent()


def test_a_refusal_follows_a_lookup() -> None:
    herder = leader_that_has_read_the_log()
    id_ = herder.send_request(DeleteConnector(connector=ORDERS, if_match=IfMatch(config_versions=frozenset({10_000}))))
    assert herder.answer(id_) is None
    run_appends(herder)
    refusal = herder.answer(id_)
    assert isinstance(refusal, RequestRefused)
    assert refusal.problem is Problem.VERSION_MISMATCH


# -- joint appends ----------------------------------------------------------------------------------------------------


def test_queued_writes_of_different_connectors_are_appended_together() -> None:
    herder = leader_that_has_read_the_log()
    first = herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    ids = [herder.send_request(RESTART), herder.send_request(DeleteConnector(connector=OTHER))]
    assert not herder.pop_effects(AppendConfigLines)
    herder.run_chore(append)
    assert herder.answer(first) is not None
    (joint,) = herder.pop_effects(AppendConfigLines)
    assert joint.purpose == AppendForWrites(ids=tuple(ids))
    herder.run_chore(joint)
    assert [herder.answer(id_) is not None for id_ in ids] == [True, True]
    assert herder.herder.config.connector(OTHER) is None


def test_a_joint_append_ends_before_the_second_write_of_a_connector_and_before_a_pause() -> None:
    herder = leader_that_has_read_the_log()
    herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    first = herder.send_request(RESTART)
    second = herder.send_request(DeleteConnector(connector=ORDERS))
    herder.send_request(SetTargetState(connector=OTHER, target_state=TargetState.PAUSED))
    last = herder.send_request(RESTART_OTHER)
    purposes = []
    while True:
        purposes.append(append.purpose)
        herder.run_chore(append)
        for lookup in herder.pop_effects(FindConfigLogEnd):
            herder.run_chore(lookup)
        if not (appends := herder.pop_effects(AppendConfigLines)):
            break
        (append,) = appends
    assert [len(purpose.ids) for purpose in purposes if isinstance(purpose, AppendForWrites)] == [1, 1, 1, 1, 1]
    assert purposes[1:3] == [AppendForWrites(ids=(first,)), AppendForWrites(ids=(second,))]
    assert purposes[4] == AppendForWrites(ids=(last,))


def test_writes_append_at_most_1000_lines_together() -> None:
    herder = leader_that_has_read_the_log()
    herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    configs = [{"share": str(number)} for number in range(600)]
    for name in (ORDERS, OTHER):
        herder.send_request(PutTaskConfigs(connector=name, configs=configs))
    herder.run_chore(append)
    (first,) = herder.pop_effects(AppendConfigLines)
    assert len(first.lines) == 601
    herder.run_chore(first)
    (second,) = herder.pop_effects(AppendConfigLines)
    assert len(second.lines) == 601


def test_writes_whose_lines_were_discarded_together_are_appended_alone() -> None:
    """The log may refuse the lines of one of them, for example because a record is too large."""
    herder = leader_that_has_read_the_log()
    herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    third_name = ConnectorName("third")
    herder.write(config_records.connector_line(third_name, CONFIG, INCARNATION))
    first, refused, last = (
        herder.send_request(DeleteConnector(connector=name)) for name in (ORDERS, OTHER, third_name)
    )
    herder.run_chore(append)
    (joint,) = herder.pop_effects(AppendConfigLines)
    assert joint.purpose == AppendForWrites(ids=(first, refused, last))
    herder.feed(fail(joint, are_lines_discarded=True))
    assert [herder.answer(id_) for id_ in (first, refused, last)] == [None, None, None]
    confirm(herder)
    herder.run_chore(herder.pop_effects(FindConfigLogEnd)[0])
    herder.run_chore(herder.pop_effects(AppendConfigLines)[0])
    (second_append,) = herder.pop_effects(AppendConfigLines)
    assert second_append.purpose == AppendForWrites(ids=(refused,))
    herder.feed(fail(second_append, are_lines_discarded=True))
    confirm(herder)
    run_appends(herder)
    answers = [herder.answer(id_) for id_ in (first, refused, last)]
    assert [type(answer) for answer in answers] == [DeletedConnector, RequestRefused, DeletedConnector]


def test_writes_whose_joint_append_has_an_unknown_result_are_all_refused() -> None:
    herder = leader_that_has_read_the_log()
    herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    ids = [herder.send_request(RESTART), herder.send_request(DeleteConnector(connector=OTHER))]
    herder.run_chore(append)
    (joint,) = herder.pop_effects(AppendConfigLines)
    herder.feed(fail(joint))
    problems = [answer.problem for id_ in ids if isinstance(answer := herder.answer(id_), RequestRefused)]
    assert problems == [Problem.LOG_FAILED, Problem.LOG_FAILED]


def test_a_patch_is_validated_before_it_joins_an_append() -> None:
    """The write before it, of the same connector, changes the config that the patch was validated with."""
    herder = leader_that_has_read_the_log()
    herder.send_request(RESTART)
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.send_request(RESTART_OTHER)
    patch = herder.send_request(PATCH)
    (validation,) = herder.pop_effects(ValidateConfig)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "b": "1"}, INCARNATION))
    herder.run_chore(validation)
    herder.run_chore(append)
    (joint,) = herder.pop_effects(AppendConfigLines)
    assert len(joint.lines) == 1
    herder.run_chore(joint)
    (again,) = herder.pop_effects(ValidateConfig)
    assert (again.id, again.config) == (patch, {**CONFIG, "b": "1", "a": "1"})
