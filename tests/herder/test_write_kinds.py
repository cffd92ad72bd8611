"""Each kind of write: its checks, the records that it appends, and its answer."""

import pytest

from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records
from coterie.herder.config_state import ConfigState
from coterie.herder.requests.refusals import Problem, SuccessWithoutContent
from coterie.herder.requests.writes import (
    DeleteConnector,
    DeletedConnector,
    PutConnector,
    PutTaskConfigs,
    SetTargetState,
    Write,
    WrittenConnector,
)
from coterie.herder.status_records import StatusState
from coterie.herder.write_kinds import write_kind_of_request
from coterie.nouns.ids import Incarnation
from coterie.nouns.states import TargetState
from tests.herder.builders import (
    CONFIG,
    CONNECTOR_LINE,
    INCARNATION,
    ORDERS,
    ORDERS_TASK_CONFIGS,
    configured_herder,
)

FRESH = Incarnation("fresh")
OTHER_CONFIG = {**CONFIG, "tasks.max": "7"}
STOPPED = config_records.target_state_line(ORDERS, TargetState.STOPPED)
PUT = PutConnector(connector=ORDERS, config=CONFIG, may_replace=False)
DELETE = DeleteConnector(connector=ORDERS)
TASK_CONFIGS = PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS)


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
def test_any_worker_may_pause_and_resume_and_only_the_leader_does_other_writes(
    request_: Write, needs_leader: bool
) -> None:
    assert write_kind_of_request(request_, FRESH).needs_leader is needs_leader


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DELETE, "Connector orders not found"),
        (TASK_CONFIGS, "Connector orders not found"),
        (target(TargetState.PAUSED), "Unknown connector orders"),
    ],
)
def test_an_unknown_connector_is_refused_with_connects_message(request_: Write, message: str) -> None:
    refusal = write_kind_of_request(request_, FRESH).refusal(ConfigState())
    assert refusal is not None
    assert (refusal.problem, refusal.message) == (Problem.NOT_FOUND, message)
    assert write_kind_of_request(request_, FRESH).refusal(configured_herder().herder.config) is None


def test_a_connector_is_created_once_and_replaced_in_its_incarnation() -> None:
    create = write_kind_of_request(PUT, FRESH)
    assert create.refusal(ConfigState()) is None
    assert create.lines(ConfigState()) == (config_records.connector_line(ORDERS, CONFIG, FRESH),)
    config = configured_herder().herder.config
    answer = create.answer_when_complete(config, StatusState(), replaced_config=None)
    assert isinstance(answer, WrittenConnector)
    assert (answer.created, answer.info.config, answer.info.tasks) == (True, CONFIG, config.committed_tasks(ORDERS))
    again = create.refusal(config)
    assert again is not None
    assert again.problem is Problem.ALREADY_EXISTS
    replace = write_kind_of_request(PutConnector(connector=ORDERS, config=CONFIG, may_replace=True), FRESH)
    assert replace.refusal(config) is None
    assert replace.lines(config) == (CONNECTOR_LINE,)
    assert INCARNATION != FRESH
    replaced = replace.answer_when_complete(config, StatusState(), replaced_config=OTHER_CONFIG)
    assert isinstance(replaced, WrittenConnector)
    assert (replaced.created, replaced.replaced_config) == (False, OTHER_CONFIG)


def test_the_initial_state_is_written_before_its_connector() -> None:
    put = PutConnector(connector=ORDERS, config=CONFIG, may_replace=False, initial_state=TargetState.STOPPED)
    assert write_kind_of_request(put, FRESH).lines(ConfigState())[0] == STOPPED


def test_a_stop_writes_an_empty_list_of_tasks_before_the_state() -> None:
    config = configured_herder().herder.config
    none = config_records.task_config_and_commit_lines(ORDERS, ())
    assert write_kind_of_request(target(TargetState.STOPPED), FRESH).lines(config) == (*none, STOPPED)
    assert len(write_kind_of_request(target(TargetState.PAUSED), FRESH).lines(config)) == 1


def test_a_stopped_connector_accepts_only_an_empty_list_of_task_configs() -> None:
    config = configured_herder(STOPPED).herder.config
    refusal = write_kind_of_request(TASK_CONFIGS, FRESH).refusal(config)
    assert refusal is not None
    assert refusal.problem is Problem.BAD_REQUEST
    assert write_kind_of_request(PutTaskConfigs(connector=ORDERS, configs=()), FRESH).refusal(config) is None


def test_task_configs_of_a_former_incarnation_are_refused_if_the_present_one_is_written() -> None:
    former = PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS, incarnation=FRESH)
    config = configured_herder().herder.config
    refusal = write_kind_of_request(former, FRESH).refusal(config)
    assert refusal is not None
    assert refusal.problem is Problem.NOT_FOUND
    present = PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS, incarnation=INCARNATION)
    assert write_kind_of_request(present, FRESH).refusal(config) is None
    by_connect = NewTopicRecord(key=CONNECTOR_LINE.key, value=b'{"properties":{"name":"orders"}}')
    config = configured_herder(by_connect).herder.config
    assert write_kind_of_request(former, FRESH).refusal(config) is None


def test_a_deletion_is_answered_with_the_config_that_is_gone() -> None:
    config = configured_herder().herder.config
    assert write_kind_of_request(DELETE, FRESH).lines(config) == config_records.connector_and_target_state_tombstones(
        ORDERS
    )
    answer = write_kind_of_request(DELETE, FRESH).answer_when_complete(
        ConfigState(), StatusState(), replaced_config=CONFIG
    )
    assert answer == DeletedConnector(replaced_config=CONFIG)


def test_a_write_without_a_view_is_answered_with_done() -> None:
    config = configured_herder().herder.config
    lines = config_records.task_config_and_commit_lines(ORDERS, ORDERS_TASK_CONFIGS, INCARNATION)
    assert write_kind_of_request(TASK_CONFIGS, FRESH).lines(config) == lines
    for request in (TASK_CONFIGS, target(TargetState.PAUSED)):
        assert (
            write_kind_of_request(request, FRESH).answer_when_complete(config, StatusState(), replaced_config=CONFIG)
            == SuccessWithoutContent()
        )
        assert not write_kind_of_request(request, FRESH).creates_connector(config)
        assert write_kind_of_request(request, FRESH).config_to_validate(config) is None
