"""The topics that a connector's tasks have used: written once, reset, and deleted with the connector (KIP-558)."""

import json
from dataclasses import replace

import pytest

from coterie.engine.log import TopicRecord
from coterie.herder import config_records
from coterie.herder.messages import AppendStatusLines, StatusAppendEnded, StatusLinesRead, TimerFired
from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.topics import ActiveTopics, DescribeActiveTopics, ResetActiveTopics
from coterie.herder.seams import TaskProgressed
from coterie.herder.status_records import StatusState
from coterie.nouns.jobs import NO_JOBS, ConnectorName
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import ALL_JOBS, ORDERS, TASKS, configured_herder, lead_round
from tests.herder.herder_driver import ME, HerderDriver


def running() -> HerderDriver:
    """A worker that runs the connector and both of its tasks."""
    driver = configured_herder()
    driver.assign(assigned=ALL_JOBS)
    driver.run_all_chores()
    driver.effects.clear()
    return driver


def progress(driver: HerderDriver, *topics: str, task: int = 0, batch_id: int = 0) -> None:
    driver.feed(TaskProgressed(task=TASKS[task], batch_id=batch_id, input_rows=1, topics=frozenset(topics)))


def topics_of(driver: HerderDriver, name: ConnectorName = ORDERS) -> tuple[str, ...]:
    answer = ask(driver, DescribeActiveTopics(connector=name))
    assert isinstance(answer, ActiveTopics)
    assert answer.connector == name
    return answer.topics


def ask(driver: HerderDriver, request: Request) -> Answer | None:
    return driver.answer(driver.send_request(request))


def topic_keys(driver: HerderDriver) -> list[str]:
    lines = [line for effect in driver.pop_effects(AppendStatusLines) for line in effect.lines]
    return [line.key.decode() for line in lines if line.key is not None and line.key.startswith(b"status-topic-")]


def test_a_topic_is_written_once_by_the_task_that_first_uses_it() -> None:
    driver = running()
    progress(driver, "b", "a", task=1)
    lines = [line for effect in driver.effects if isinstance(effect, AppendStatusLines) for line in effect.lines]
    written = [line for line in lines if line.key is not None and line.key.startswith(b"status-topic-")]
    assert [line.key for line in written] == [b"status-topic-a:connector-orders", b"status-topic-b:connector-orders"]
    assert written[0].value is not None
    use = json.loads(written[0].value)["topic"]
    assert use.pop("discoverTimestamp") > 0
    assert use == {"name": "a", "connector": "orders", "task": 1}
    progress(driver, "a", task=0, batch_id=1)
    driver.run_all_chores()
    assert topics_of(driver) == ("a", "b")
    driver.effects.clear()
    progress(driver, "a", "b", batch_id=2)
    driver.run_all_chores()
    assert topic_keys(driver) == []


def test_a_reset_is_answered_when_its_tombstones_are_read() -> None:
    driver = running()
    progress(driver, "a")
    driver.run_all_chores()
    driver.effects.clear()
    request = driver.send_request(ResetActiveTopics(connector=ORDERS))
    assert driver.answer(request) is None
    progress(driver, "a", batch_id=1)
    driver.run_all_chores()
    assert driver.answer(request) == SuccessWithoutContent()
    assert topics_of(driver) == ()
    progress(driver, "a", batch_id=2)
    driver.run_all_chores()
    assert topics_of(driver) == ("a",)


def test_a_failed_append_is_repeated() -> None:
    driver = running()
    progress(driver, "a")
    driver.pop_effects(AppendStatusLines)
    driver.feed(StatusAppendEnded(failure="no brokers"))
    driver.feed(TimerFired(timer="statuses"))
    driver.run_all_chores()
    assert topics_of(driver) == ("a",)


def test_the_topics_of_a_deleted_connector_are_deleted() -> None:
    driver = running()
    progress(driver, "a")
    driver.run_all_chores()
    driver.write(*config_records.connector_and_target_state_tombstones(ORDERS))
    driver.run_all_chores()
    assert topics_of(driver) == ()


def test_the_leader_deletes_topics_that_outlived_their_connector() -> None:
    driver = configured_herder()
    line = TopicRecord(partition=0, offset=0, timestamp_ms=0, key=b"status-topic-t:connector-gone", value=b"{}")
    driver.feed(StatusLinesRead(lines=[line]))
    assert topics_of(driver, ConnectorName("gone")) == ("t",)
    lead_round(driver, ConnectProtocol.STATIC, {ME: NO_JOBS})
    driver.run_all_chores()
    assert topics_of(driver, ConnectorName("gone")) == ()


def test_an_unknown_connector_has_no_topics_and_its_reset_succeeds() -> None:
    driver = running()
    assert topics_of(driver, ConnectorName("nope")) == ()
    assert ask(driver, ResetActiveTopics(connector=ConnectorName("nope"))) == SuccessWithoutContent()


@pytest.mark.parametrize(
    ("switched_off", "describe", "reset"),
    [
        ({"topic_tracking_enabled": False}, "Topic tracking is disabled.", "Topic tracking is disabled."),
        ({"topic_reset_allowed": False}, None, "Topic tracking reset is disabled."),
    ],
)
def test_what_is_switched_off_is_forbidden(
    switched_off: dict[str, bool], describe: str | None, reset: str | None
) -> None:
    driver = running()
    driver.herder.settings = replace(driver.herder.settings, **switched_off)  # type: ignore[arg-type]
    progress(driver, "a")
    driver.run_all_chores()
    for request, message in (
        (DescribeActiveTopics(connector=ORDERS), describe),
        (ResetActiveTopics(connector=ORDERS), reset),
    ):
        answer = ask(driver, request)
        if message is None:
            assert answer == ActiveTopics(connector=ORDERS, topics=("a",))
        else:
            assert answer == RequestRefused(problem=Problem.FORBIDDEN, message=message)


@pytest.mark.parametrize(
    "key", [b"status-topic-", b"status-topic-t", b"status-topic-:connector-c", b"status-topic-t:connector-", None]
)
def test_other_keys_are_no_topics(key: bytes | None) -> None:
    state = StatusState()
    state.apply(TopicRecord(partition=0, offset=0, timestamp_ms=0, key=key, value=b"{}"))
    assert state.connectors_with_topics() == frozenset()
