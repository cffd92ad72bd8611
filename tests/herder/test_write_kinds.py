"""Each kind of write: what it is checked against, what it appends, what it is answered."""

import pytest

from coterie.herder import config_records
from coterie.herder.config_state import ConfigState
from coterie.herder.requests import (
    ConnectorInfo,
    DeleteConnector,
    Done,
    Problem,
    PutConnector,
    PutTaskConfigs,
    SetTargetState,
    Write,
)
from coterie.herder.write_kinds import kind_of
from coterie.nouns.ids import Incarnation
from coterie.nouns.states import TargetState
from tests.herder.builders import BORN, CONFIG, DEALT, LIFE, ORDERS, SHARES, ready

FRESH = Incarnation("fresh")
STOPPED = config_records.target_state_line(ORDERS, TargetState.STOPPED)
PUT = PutConnector(connector=ORDERS, config=CONFIG, replace=False)
DELETE = DeleteConnector(connector=ORDERS)
TASK_CONFIGS = PutTaskConfigs(connector=ORDERS, configs=SHARES)


def target(state: TargetState) -> SetTargetState:
    return SetTargetState(connector=ORDERS, target_state=state)


@pytest.mark.parametrize(
    ("request_", "needs_leader"),
    [
        (PUT, True),
        (DELETE, True),
        (TASK_CONFIGS, True),
        (target(TargetState.PAUSED), False),
        (target(TargetState.STARTED), False),
        (target(TargetState.STOPPED), True),
    ],
)
def test_any_worker_pauses_and_resumes_and_all_else_is_the_leaders(request_: Write, needs_leader: bool) -> None:
    assert kind_of(request_, FRESH).needs_leader is needs_leader


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DELETE, "Connector orders not found"),
        (TASK_CONFIGS, "Connector orders not found"),
        (target(TargetState.PAUSED), "Unknown connector orders"),
    ],
)
def test_an_unknown_connector_is_refused_in_connects_words(request_: Write, message: str) -> None:
    refusal = kind_of(request_, FRESH).refusal(ConfigState())
    assert refusal is not None
    assert (refusal.problem, refusal.message) == (Problem.NOT_FOUND, message)
    assert kind_of(request_, FRESH).refusal(ready().herder.config) is None


def test_a_connector_is_created_once_and_replaced_in_its_incarnation() -> None:
    create = kind_of(PUT, FRESH)
    assert create.refusal(ConfigState()) is None
    assert create.lines(ConfigState()) == (config_records.connector_line(ORDERS, CONFIG, FRESH),)
    known = ready().herder.config
    answer = create.answer(known, created=create.creates(ConfigState()))
    assert isinstance(answer, ConnectorInfo)
    assert (answer.created, answer.config, answer.tasks) == (True, CONFIG, known.tasks(ORDERS))
    again = create.refusal(known)
    assert again is not None
    assert again.problem is Problem.ALREADY_EXISTS
    replace = kind_of(PutConnector(connector=ORDERS, config=CONFIG, replace=True), FRESH)
    assert replace.refusal(known) is None
    assert replace.lines(known) == (BORN,)
    assert LIFE != FRESH
    replaced = replace.answer(known, created=replace.creates(known))
    assert isinstance(replaced, ConnectorInfo)
    assert not replaced.created


def test_the_initial_state_is_written_before_its_connector() -> None:
    put = PutConnector(connector=ORDERS, config=CONFIG, replace=False, initial_state=TargetState.STOPPED)
    assert kind_of(put, FRESH).lines(ConfigState())[0] == STOPPED


def test_a_stop_writes_that_there_are_no_tasks_before_the_state() -> None:
    config = ready().herder.config
    none = config_records.task_config_lines(ORDERS, ())
    assert kind_of(target(TargetState.STOPPED), FRESH).lines(config) == (*none, STOPPED)
    assert len(kind_of(target(TargetState.PAUSED), FRESH).lines(config)) == 1


def test_a_stopped_connector_takes_no_task_configs_but_none() -> None:
    config = ready(STOPPED).herder.config
    refusal = kind_of(TASK_CONFIGS, FRESH).refusal(config)
    assert refusal is not None
    assert refusal.problem is Problem.BAD_REQUEST
    assert kind_of(PutTaskConfigs(connector=ORDERS, configs=()), FRESH).refusal(config) is None


def test_a_write_without_a_view_is_answered_with_done() -> None:
    config = ready().herder.config
    assert kind_of(DELETE, FRESH).lines(config) == config_records.deletion_lines(ORDERS)
    assert kind_of(TASK_CONFIGS, FRESH).lines(config) == DEALT
    for request in (DELETE, TASK_CONFIGS, target(TargetState.PAUSED)):
        assert kind_of(request, FRESH).answer(config, created=False) == Done()
        assert not kind_of(request, FRESH).creates(config)
        assert kind_of(request, FRESH).to_validate(config) is None
