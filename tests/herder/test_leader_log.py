"""The right to write as the leader: opened, confirmed by a heartbeat sent afterwards, lost, and opened again."""

import pytest

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfigLines,
    ConfigLinesAppendFailed,
    FindConfigLogEnd,
    LeaderLogOpened,
    LeaderLogOpenFailed,
    MakeSessionKey,
    OpenLeaderLog,
    TimerFired,
    WriteLogMessage,
)
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import DeleteConnector, SetTargetState
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import ConfirmLeadership, LeadershipConfirmed, LeaseRenewed, MembershipLost
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import CONFIG, DELETED, INCARNATION, ORDERS, configured_herder
from tests.herder.herder_driver import ME, HerderDriver

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
