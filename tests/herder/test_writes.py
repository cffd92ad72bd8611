"""Writes: one at a time, checked against all earlier writes, answered when they are read back."""

import pytest

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfigLines,
    AppendForWrites,
    ConfigLogEndLookupEnded,
    FindConfigLogEnd,
    LogEndLookupForWrite,
    ShutdownOrdered,
    TimerFired,
    ValidateConfig,
)
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import (
    DeleteConnector,
    DeletedConnector,
    PatchConnector,
    PutConnector,
    PutTaskConfigs,
    RestartConnector,
    SetTargetState,
    Write,
    WrittenConnector,
)
from coterie.herder.timers import ConfigLogEndLookupDue, RequestTimeoutDue
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState
from tests.herder.builders import (
    CONFIG,
    CONNECTOR_LINE,
    DELETED,
    ORDERS,
    ORDERS_TASK_CONFIGS,
    TASK_CONFIG_LINES,
    configured_herder,
)
from tests.herder.herder_driver import ME, ROUND, HerderDriver, validated

OTHER = ConnectorName("other")
STOP = (
    *config_records.task_config_and_commit_lines(ORDERS, ()),
    config_records.target_state_line(ORDERS, TargetState.STOPPED),
)


def put(herder: HerderDriver, tasks_max: str) -> RequestId:
    """A user sends another config of the connector to its leader."""
    herder.assign(leader=ME)
    return herder.send_request(
        PutConnector(connector=ORDERS, config={**CONFIG, "tasks.max": tasks_max}, may_replace=True)
    )


def test_a_new_config_is_validated_with_the_checkpointed_task_configs() -> None:
    herder = configured_herder(*STOP)
    id_ = put(herder, "3")
    (validation,) = herder.pop_effects(ValidateConfig)
    assert list(validation.configs_of_checkpointed_tasks) == ORDERS_TASK_CONFIGS
    herder.feed(validated(id_, {"tasks.max": ["no"]}))
    answer = herder.answer(id_)
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, "no" in answer.message) == (Problem.BAD_REQUEST, True)
    assert not herder.pop_effects(AppendConfigLines)


def test_tasks_committed_meanwhile_cause_another_validation_of_the_config() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE)
    id_ = put(herder, "3")
    (validation,) = herder.pop_effects(ValidateConfig)
    assert not validation.configs_of_checkpointed_tasks
    herder.feed(validated(id_))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.write(*TASK_CONFIG_LINES)
    herder.run_chore(lookup)
    assert AppendForWrites(ids=(id_,)) not in [append.purpose for append in herder.pop_effects(AppendConfigLines)]
    (validation,) = herder.pop_effects(ValidateConfig)
    assert list(validation.configs_of_checkpointed_tasks) == ORDERS_TASK_CONFIGS
    herder.feed(validated(id_, {"tasks.max": ["no"]}))
    assert isinstance(herder.answer(id_), RequestRefused)


def test_a_request_times_out_unless_its_write_has_begun() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE)
    early = herder.send_request(DeleteConnector(connector=ORDERS))
    herder.now_ms += 90_000
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=early)))
    timed_out = herder.answer(early)
    assert isinstance(timed_out, RequestRefused)
    assert timed_out.message == (
        "Request timed out. The worker is currently ensuring membership in the cluster, which began at "
        "2026-11-21T02:39:26.406Z."
    )
    herder.assign(leader=ME)
    herder.run_all_chores()
    assert herder.herder.config.connector(ORDERS) is not None, "a request that timed out is not executed later"

    begun = herder.send_request(DeleteConnector(connector=ORDERS))
    for lookup in herder.pop_effects(FindConfigLogEnd):
        herder.run_chore(lookup)
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=begun)))
    herder.run_chore(append)
    assert isinstance(herder.answer(begun), RequestRefused)
    assert herder.herder.config.connector(ORDERS) is None


def test_a_write_waits_until_the_one_before_it_is_read_back() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    stopped = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED))
    deleted = herder.send_request(DeleteConnector(connector=ORDERS))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.run_chore(lookup)
    (append,) = herder.pop_effects(AppendConfigLines)
    assert not herder.pop_effects(FindConfigLogEnd), "the second write has not begun"
    assert herder.answer(stopped) is None, "an append alone does not answer the request"
    herder.run_chore(append)
    assert herder.answer(stopped) == SuccessWithoutContent()
    herder.run_all_chores()
    assert herder.answer(deleted) == DELETED


def test_a_write_is_answered_with_the_config_that_the_write_before_it_has_written() -> None:
    herder = configured_herder()
    ids = [put(herder, "3"), put(herder, "4"), herder.send_request(PatchConnector(connector=ORDERS, patch={"a": "b"}))]
    herder.run_all_chores()
    deleted = herder.send_request(DeleteConnector(connector=ORDERS))
    herder.run_all_chores()
    answers = [herder.answer(id_) for id_ in (*ids, deleted)]
    replaced = [answer.replaced_config for answer in answers if isinstance(answer, WrittenConnector | DeletedConnector)]
    written = [answer.info.config for answer in answers if isinstance(answer, WrittenConnector)]
    assert replaced == [CONFIG, *written]
    assert [config["tasks.max"] for config in written] == ["3", "4", "4"]


def test_a_write_repeats_the_lookup_of_the_end_of_an_unreachable_log() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    deleted = herder.send_request(DeleteConnector(connector=ORDERS))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.feed(ConfigLogEndLookupEnded(purpose=lookup.purpose, end_offset=None))
    assert not herder.pop_effects(FindConfigLogEnd)
    assert herder.answer(deleted) is None
    herder.now_ms += 500
    herder.feed(TimerFired(timer=ConfigLogEndLookupDue(id=deleted)))
    herder.run_all_chores()
    assert herder.answer(deleted) == DELETED


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("a b", WrittenConnector),
        ("n" * 255, WrittenConnector),
        ("n" * 256, RequestRefused),
        ("ü" * 128, RequestRefused),
        (" ", RequestRefused),
        ("a/b", RequestRefused),
        ("a\n", RequestRefused),
        (".", WrittenConnector),
        ("..", WrittenConnector),
        ("a\u200bb", WrittenConnector),
        ("a\x9fb", RequestRefused),
        ("...", WrittenConnector),
        (".a", WrittenConnector),
    ],
)
def test_a_connectors_name_is_text_of_at_most_255_bytes_without_a_slash(name: str, answer: type[Answer]) -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    id_ = herder.send_request(
        PutConnector(connector=ConnectorName(name), config={"name": name, "connector.class": "X"}, may_replace=False)
    )
    herder.run_all_chores()
    assert isinstance(herder.answer(id_), answer)


def test_a_config_without_a_connector_class_is_refused_in_connects_words() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    id_ = herder.send_request(PutConnector(connector=ConnectorName("a"), config={"name": "a"}, may_replace=False))
    message = "Connector config {name=a} contains no connector type"
    assert herder.answer(id_) == RequestRefused(problem=Problem.BAD_REQUEST, message=message)
    assert not herder.pop_effects(ValidateConfig), "the plug-in was called"


def test_a_write_waits_for_the_start_of_the_worker_and_its_time_out_names_this_stage() -> None:
    herder = HerderDriver()
    herder.write(CONNECTOR_LINE)
    id_ = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED))
    late = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.STARTED))
    assert not herder.chores()
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=late)))
    refusal = herder.answer(late)
    assert isinstance(refusal, RequestRefused)
    assert "starting the task runtime" in refusal.message
    herder.open_runtime()
    herder.run_all_chores()
    assert herder.answer(id_) == SuccessWithoutContent()


def test_a_write_waits_while_the_leader_is_not_known() -> None:
    herder = configured_herder()
    herder.assign(leader=MemberId(""), leader_url=WorkerUrl(""))
    id_ = herder.send_request(DeleteConnector(connector=ORDERS))
    herder.run_all_chores()
    assert herder.answer(id_) is None
    herder.assign(leader=ME)
    herder.run_all_chores()
    assert herder.answer(id_) == DELETED


def test_a_shutdown_that_is_out_of_time_reports_of_each_write_whether_it_may_still_take_effect() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    begun, queued = (herder.send_request(DeleteConnector(connector=ORDERS)) for _ in range(2))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.run_chore(lookup)
    herder.feed(ShutdownOrdered(reason="SIGTERM"))
    herder.feed(TimerFired(timer="shutdown"))
    problems = []
    for id_ in (begun, queued):
        refusal = herder.answer(id_)
        assert isinstance(refusal, RequestRefused)
        problems.append(refusal.problem)
    assert problems == [Problem.LOG_FAILED, Problem.SHUTTING_DOWN]


# -- the message of a request that has timed out ----------------------------------------------------------------------


def time_out_message(herder: HerderDriver, id_: RequestId) -> str:
    """The message of the request ``id_``, whose time limit ends now."""
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=id_)))
    refusal = herder.answer(id_)
    assert isinstance(refusal, RequestRefused)
    assert refusal.problem is Problem.TIMED_OUT
    return refusal.message


def appending(herder: HerderDriver, write: Write) -> RequestId:
    """Send ``write``, and let its append begin 94 ms later."""
    herder.assign(leader=ME)
    id_ = herder.send_request(write)
    herder.now_ms += 94
    for validation in herder.pop_effects(ValidateConfig):
        herder.run_chore(validation)
    for lookup in herder.pop_effects(FindConfigLogEnd):
        herder.run_chore(lookup)
    assert herder.pop_effects(AppendConfigLines)
    return id_


@pytest.mark.parametrize(
    ("write", "activity"),
    [
        (PutConnector(connector=ORDERS, config=CONFIG, may_replace=True), "writing a config for connector orders"),
        (PatchConnector(connector=ORDERS, patch={"a": "b"}), "writing a config for connector orders"),
        (DeleteConnector(connector=ORDERS), "removing the config for connector orders from the config topic"),
        (
            SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED),
            "writing the STOPPED target state for connector orders",
        ),
        (
            SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED),
            "writing the PAUSED target state for connector orders",
        ),
        (
            RestartConnector(connector=ORDERS, include_tasks=True, only_failed=False),
            "writing restart request for connector orders",
        ),
        (
            PutTaskConfigs(connector=ORDERS, configs=ORDERS_TASK_CONFIGS),
            "writing 2 task configs for connector orders",
        ),
    ],
)
def test_the_time_out_of_a_write_that_is_appended_states_what_is_written_since_when(
    write: Write, activity: str
) -> None:
    herder = configured_herder()
    id_ = appending(herder, write)
    herder.now_ms += 1_500
    activity = activity if "topic" in activity else f"{activity} to the config topic"
    assert time_out_message(herder, id_) == (
        f"Request timed out. The worker is currently {activity}, which began at 2026-11-21T02:39:26.500Z."
    )


def test_the_time_out_of_a_queued_write_states_what_the_worker_does_for_the_write_before_it() -> None:
    herder = configured_herder()
    appending(herder, DeleteConnector(connector=ORDERS))
    id_ = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED))
    assert "currently removing the config for connector orders from the config topic, " in time_out_message(herder, id_)


def test_the_time_out_of_a_write_states_that_it_waits_for_the_leaders_log() -> None:
    herder = configured_herder()
    herder.confirms_leadership = False
    herder.assign(leader=ME)
    deletion = herder.send_request(DeleteConnector(connector=ORDERS))
    pause = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED))
    for id_ in (pause, deletion):
        message = time_out_message(herder, id_)
        assert "currently reclaiming write privileges for the config topic, which began at 2026-11-" in message


def test_the_time_out_of_a_write_behind_one_that_waits_for_the_leader_names_no_write_of_another_connector() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    herder.confirms_leadership = False
    herder.send_request(DeleteConnector(connector=ORDERS))
    herder.feed(ROUND)
    for lookup in herder.pop_effects(FindConfigLogEnd):
        herder.run_chore(lookup)
    pause = herder.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED))
    other = herder.send_request(SetTargetState(connector=OTHER, target_state=TargetState.PAUSED))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    assert lookup.purpose == LogEndLookupForWrite(id=other), "it passes the queued writes of the connector"
    assert "currently ensuring membership in the cluster, " in time_out_message(herder, pause)
    assert "currently reading to the end of the config topic, " in time_out_message(herder, other)


def test_the_time_out_of_a_write_that_is_validated_has_connects_words() -> None:
    message = time_out_message(herder := configured_herder(), put(herder, "3"))
    assert "The worker is currently performing multi-property validation for the connector, which began at" in message


def test_the_time_out_of_a_write_states_when_its_last_wait_began() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    id_ = herder.send_request(DeleteConnector(connector=ORDERS))
    herder.feed(ROUND)
    herder.now_ms += 594
    for lookup in herder.pop_effects(FindConfigLogEnd):
        herder.run_chore(lookup)
    herder.now_ms += 10_000
    assert time_out_message(herder, id_) == (
        "Request timed out. The worker is currently ensuring membership in the cluster, which began at "
        "2026-11-21T02:39:27Z."
    )
