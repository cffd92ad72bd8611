"""A write that is repeated because the connection to the leader broke: it is performed once, or looked up."""

import json
from dataclasses import replace

import pytest

from coterie.herder import config_records
from coterie.herder.config_records import ConnectorConfigWritten
from coterie.herder.config_state import WRITTEN_REQUESTS_MAX, ConfigState, WrittenRequest
from coterie.herder.messages import AppendConfigLines, FindConfigLogEnd, SetTimer, TimerFired, ValidateConfig
from coterie.herder.requests.ids import ClientRequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.reads import ConnectorStatus
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.writes import (
    ChangeOffsets,
    DeleteConnector,
    PatchConnector,
    PutConnector,
    RestartConnector,
    SetTargetState,
    Write,
    WriteAttempt,
    WrittenConnector,
)
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.connector_offsets import OffsetChange
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import CONFIG, DELETED, ORDERS, configured_herder
from tests.herder.herder_driver import ME, OTHER, HerderDriver

FIRST = WriteAttempt(id=ClientRequestId("r1"), time_left_ms=90_000)
REPEAT = WriteAttempt(id=ClientRequestId("r1"), time_left_ms=80_000, is_repeat=True)
OTHER_REPEAT = replace(REPEAT, id=ClientRequestId("r2"))
NEW = ConnectorName("new")
CREATION = PutConnector(connector=NEW, config={**CONFIG, "name": NEW}, may_replace=False)
WRITES: list[Write] = [
    CREATION,
    PutConnector(connector=ORDERS, config={**CONFIG, "tasks.max": "3"}, may_replace=True),
    PatchConnector(connector=ORDERS, patch={"tasks.max": "3"}),
    SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED),
    RestartConnector(connector=ORDERS, include_tasks=True, only_failed=False),
    DeleteConnector(connector=ORDERS),
]


def leader(protocol: ConnectProtocol = ConnectProtocol.STATIC) -> HerderDriver:
    herder = configured_herder()
    herder.assign(leader=ME, protocol=protocol)
    return herder


def perform(herder: HerderDriver, write: Write, attempt: WriteAttempt) -> Answer:
    id_ = herder.send_request(write, attempt)
    herder.run_all_chores()
    answer = herder.answer(id_)
    assert answer is not None
    return answer


def is_equal(first: Answer, second: Answer) -> bool:
    """Whether the responses are equal; the tasks of a new config may have been committed between them."""
    if isinstance(first, WrittenConnector) and isinstance(second, WrittenConnector):
        return replace(first, info=replace(first.info, tasks=())) == replace(
            second, info=replace(second.info, tasks=())
        )
    if isinstance(first, ConnectorStatus) and isinstance(second, ConnectorStatus):
        return first.connector == second.connector
    return first == second


@pytest.mark.parametrize("write", WRITES, ids=lambda write: type(write).__name__)
def test_a_repeat_of_a_write_that_has_taken_effect_is_answered_like_it_and_writes_nothing(write: Write) -> None:
    herder = leader()
    first = perform(herder, write, FIRST)
    lines = len(herder.config)
    assert is_equal(perform(herder, write, REPEAT), first)
    assert len(herder.config) == lines
    assert herder.herder.requests.writes == {}


@pytest.mark.parametrize("write", WRITES, ids=lambda write: type(write).__name__)
def test_a_repeat_of_a_write_that_has_not_taken_effect_is_performed(write: Write) -> None:
    herder, other = leader(), leader()
    assert perform(herder, write, REPEAT) == perform(other, write, FIRST)
    assert herder.config == other.config


def test_a_repeat_on_the_leader_that_still_performs_the_first_attempt_waits_for_it() -> None:
    herder = leader()
    first, second = herder.send_request(CREATION, FIRST), herder.send_request(CREATION, REPEAT)
    herder.run_all_chores()
    for id_ in (first, second):
        answer = herder.answer(id_)
        assert isinstance(answer, WrittenConnector)
        assert answer.created
    assert len([line for line in herder.config if line.key == b"connector-new"]) == 1


def test_a_repeat_is_not_validated_before_it_is_looked_up() -> None:
    herder = leader()
    perform(herder, CREATION, FIRST)
    herder.send_request(CREATION, REPEAT)
    assert not herder.pop_effects(ValidateConfig), "a plug-in that fails now would refuse a write that has taken effect"


def test_a_follower_answers_a_repeat_whose_line_it_reads_and_else_sends_it_to_the_leader() -> None:
    herder = configured_herder()
    herder.assign(protocol=ConnectProtocol.STATIC)
    id_ = herder.send_request(CREATION, REPEAT)
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    assert herder.answer(id_) is None, "it reads the log to its end first"
    lines = (config_records.connector_line(NEW, CREATION.config, Incarnation("i")),)
    written = config_records.with_id_in_last_non_tombstone(lines, FIRST.id)
    herder.write(*written, read=False)
    herder.run_chore(lookup)
    assert herder.answer(id_) is None
    del herder.config[-1:]
    herder.write(*written)
    answer = herder.answer(id_)
    assert isinstance(answer, WrittenConnector)
    assert answer.created

    other = perform(herder, PatchConnector(connector=ORDERS, patch={"a": "b"}), OTHER_REPEAT)
    assert isinstance(other, RequestRefused)
    assert other.problem is Problem.NOT_LEADER
    assert not herder.pop_effects(AppendConfigLines)


@pytest.mark.parametrize("leads", [True, False])
def test_in_a_group_that_workers_of_connect_may_join_the_outcome_of_a_missing_line_is_unknown(leads: bool) -> None:
    herder = configured_herder()
    herder.assign(leader=ME if leads else OTHER, protocol=ConnectProtocol.SESSIONED)
    answer = perform(herder, CREATION, REPEAT)
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.OUTCOME_UNKNOWN
    assert "read the connector to find out" in answer.message
    lines = (config_records.connector_line(NEW, CREATION.config, Incarnation("i")),)
    herder.write(*config_records.with_id_in_last_non_tombstone(lines, FIRST.id))
    assert isinstance(perform(herder, CREATION, REPEAT), WrittenConnector)


def test_the_outcome_of_a_repeated_change_of_offsets_is_unknown() -> None:
    herder = leader()
    perform(herder, SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED), FIRST)
    change = ChangeOffsets(connector=ORDERS, change=OffsetChange(offsets=()))
    answer = perform(herder, change, OTHER_REPEAT)
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.OUTCOME_UNKNOWN


def test_a_repeated_deletion_does_not_delete_a_connector_that_was_created_again_meanwhile() -> None:
    herder = leader()
    perform(herder, SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED), OTHER_REPEAT)
    assert perform(herder, DeleteConnector(connector=ORDERS), FIRST) == DELETED
    assert [line.value is None for line in herder.config[-3:]] == [False, True, True]
    again = PutConnector(connector=ORDERS, config=CONFIG, may_replace=False)
    assert isinstance(perform(herder, again, replace(FIRST, id=ClientRequestId("r3"))), WrittenConnector)
    assert perform(herder, DeleteConnector(connector=ORDERS), REPEAT) == DELETED
    assert herder.herder.config.connector(ORDERS) is not None
    assert herder.herder.config.target_state(ORDERS) is TargetState.STARTED


def test_the_time_limit_of_an_attempt_is_the_time_that_is_left() -> None:
    herder = configured_herder()
    id_ = herder.send_request(CREATION, REPEAT)
    (timer,) = (timer for timer in herder.pop_effects(SetTimer) if timer.timer == RequestTimeoutDue(id=id_))
    assert timer.at_ms == herder.now_ms + REPEAT.time_left_ms
    herder.feed(TimerFired(timer=timer.timer))
    assert isinstance(herder.answer(id_), RequestRefused)


def test_the_config_state_keeps_the_requests_of_the_last_lines() -> None:
    driver = HerderDriver()
    lines = [
        config_records.with_id_in_last_non_tombstone(
            (config_records.connector_line(NEW, {"a": str(number)}, Incarnation("i")),), ClientRequestId(str(number))
        )
        for number in range(WRITTEN_REQUESTS_MAX + 1)
    ]
    driver.write(*(line for (line,) in lines))
    state: ConfigState = driver.herder.config
    assert state.written_request(ClientRequestId("0")) is None
    assert state.written_request(ClientRequestId("1")) == WrittenRequest(replaced_config={"a": "0"})
    assert state.written_request(ClientRequestId(str(WRITTEN_REQUESTS_MAX))) == WrittenRequest(
        replaced_config={"a": str(WRITTEN_REQUESTS_MAX - 1)}
    )


def test_a_line_with_another_kind_of_request_is_read_without_it() -> None:
    value = json.dumps({"properties": {"a": "b"}, "request": 7}).encode()
    written = config_records.parse_line(b"connector-new", value)
    assert written == ConnectorConfigWritten(connector=NEW, config={"a": "b"})
