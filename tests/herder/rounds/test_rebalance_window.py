"""Changes of the set of jobs within `config.rebalance.window.ms` cause one rebalance."""

import pytest

from coterie.engine.log import TopicRecord
from coterie.herder import config_records, status_records
from coterie.herder.messages import ConfigLinesRead, SetTimer, StatusLinesRead, TimerFired
from coterie.herder.requests.writes import PutConnector
from coterie.herder.status_records import Status
from coterie.nouns.ids import GenerationId, Incarnation, LogPosition, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import MemberReport, MembershipLost, Rejoin, SendAssignments
from coterie.nouns.states import JobState, TargetState
from tests.herder.herder_driver import ME, OTHER, ROUND, HerderDriver, assignments_requested

A, B = ConnectorName("a"), ConnectorName("b")
CONFIG = {"connector.class": "LightSource"}
WINDOW_MS = 300


def herder_without_jobs(leader: MemberId = OTHER) -> HerderDriver:
    """A worker of a group without jobs."""
    herder = HerderDriver()
    herder.open_runtime()
    herder.assign(leader=leader)
    return herder


def write_connector(herder: HerderDriver, name: ConnectorName) -> None:
    herder.write(config_records.connector_line(name, CONFIG, Incarnation("incarnation-0")))


def write_task_configs(herder: HerderDriver, name: ConnectorName, tasks: int = 2) -> None:
    herder.write(*config_records.task_config_and_commit_lines(name, [{"task": str(number)} for number in range(tasks)]))


def compute_assignments(herder: HerderDriver) -> None:
    """The leader assigns the jobs configured by now; the rebalance has not ended yet."""
    report = MemberReport(url=WorkerUrl("http://here:8083/"), config_offset=herder.herder.config.offset)
    herder.feed(assignments_requested({ME: report}, generation=herder.generation + 1))
    assert herder.pop_effects(SendAssignments)


def changed_jobs_timers(herder: HerderDriver) -> list[int]:
    """The ends of the opened windows."""
    return [timer.at_ms for timer in herder.pop_effects(SetTimer) if timer.timer == "changed jobs"]


def requested_rejoins(herder: HerderDriver, *, after_ms: int = 0) -> int:
    """The number of rejoins that the herder requests after ``after_ms``."""
    herder.now_ms += after_ms
    herder.feed(TimerFired(timer="changed jobs"))
    return len(herder.pop_effects(Rejoin))


def test_changes_within_the_window_request_one_rejoin_at_its_end() -> None:
    herder = herder_without_jobs()
    write_connector(herder, A)
    assert changed_jobs_timers(herder) == [herder.now_ms + WINDOW_MS]
    assert requested_rejoins(herder, after_ms=WINDOW_MS - 1) == 0
    write_connector(herder, B)
    assert not changed_jobs_timers(herder), "the first change opens the window"
    herder.now_ms += 1
    herder.feed(TimerFired(timer="changed jobs"))
    (rejoin,) = herder.pop_effects(Rejoin)
    assert rejoin.reason == "the set of jobs has changed: 2 more, 0 fewer"
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0, "requested once"


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_leader_and_follower_request_a_rejoin_in_the_same_way(leader: MemberId) -> None:
    herder = HerderDriver()
    herder.open_runtime()
    write_connector(herder, A)
    if leader == ME:
        compute_assignments(herder)
    herder.assign(leader=leader)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0, "assigned jobs are not a change"
    write_connector(herder, B)
    assert requested_rejoins(herder, after_ms=WINDOW_MS - 1) == 0
    assert requested_rejoins(herder, after_ms=1) == 1


def test_a_rebalance_for_another_reason_includes_the_changes() -> None:
    herder = herder_without_jobs()
    write_connector(herder, A)
    herder.feed(ROUND)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0, "a rebalance is under way"
    herder.assign()
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0


def test_changes_during_a_rebalance_open_another_window() -> None:
    herder = herder_without_jobs(leader=ME)
    herder.feed(ROUND)
    compute_assignments(herder)
    write_connector(herder, A)  # The assignments were computed without it.
    assert not changed_jobs_timers(herder)
    herder.now_ms += 2 * WINDOW_MS
    herder.assign(leader=ME)
    assert changed_jobs_timers(herder) == [herder.now_ms + WINDOW_MS]
    assert requested_rejoins(herder, after_ms=WINDOW_MS - 1) == 0
    assert requested_rejoins(herder, after_ms=1) == 1


def test_an_assigned_connector_that_a_follower_reads_later_is_not_a_change() -> None:
    herder = herder_without_jobs()
    herder.feed(ROUND)
    write_connector(herder, A)
    line = config_records.connector_line(B, CONFIG, Incarnation("incarnation-0"))
    herder.write(line, read=False)
    herder.assign()
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0
    read = TopicRecord(partition=0, offset=1, timestamp_ms=0, key=line.key, value=line.value)
    herder.feed(ConfigLinesRead(lines=[read], position=LogPosition(2)))
    assert not changed_jobs_timers(herder)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0


def test_a_connector_created_and_deleted_within_the_window_requests_no_rejoin() -> None:
    herder = herder_without_jobs()
    write_connector(herder, A)
    herder.write(*config_records.connector_and_target_state_tombstones(A))
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0


def test_deletions_are_collected_in_the_window_like_additions() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    for name in (A, B):
        write_connector(herder, name)
        write_task_configs(herder, name)
    herder.assign()
    for name in (A, B):
        herder.write(*config_records.connector_and_target_state_tombstones(name))
        assert not herder.pop_effects(Rejoin)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 1


def test_the_first_tasks_of_a_single_connector_do_not_wait_for_a_second_window() -> None:
    herder = herder_without_jobs()
    write_connector(herder, A)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 1
    herder.assign()
    write_task_configs(herder, A)
    assert len(herder.pop_effects(Rejoin)) == 1


def test_the_first_tasks_of_several_connectors_wait_for_the_window() -> None:
    herder = herder_without_jobs()
    for name in (A, B):
        write_connector(herder, name)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 1
    herder.assign()
    write_task_configs(herder, A)
    assert not herder.pop_effects(Rejoin)
    write_task_configs(herder, B)
    assert not herder.pop_effects(Rejoin), "tasks of two connectors; there may be more"
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 1


def test_a_connector_that_is_not_started_is_not_waited_for() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    write_connector(herder, A)
    write_connector(herder, B)
    herder.write(config_records.target_state_line(B, TargetState.PAUSED))
    herder.assign()
    write_task_configs(herder, A)
    assert len(herder.pop_effects(Rejoin)) == 1


def test_a_connector_that_cannot_be_split_is_not_waited_for() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    write_connector(herder, A)
    write_connector(herder, B)
    herder.assign()
    failed_status = Status(
        state=JobState.FAILED, worker_id=WorkerId("there:8083"), generation=GenerationId(1), trace="no such table"
    )
    line = status_records.status_line_of_job(B, failed_status)
    herder.feed(
        StatusLinesRead(lines=[TopicRecord(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value)])
    )
    write_task_configs(herder, A)
    assert len(herder.pop_effects(Rejoin)) == 1


def test_a_leader_with_a_pending_write_of_another_connector_waits_for_it() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    write_connector(herder, A)
    compute_assignments(herder)
    herder.assign(leader=ME)
    herder.send_request(PutConnector(connector=B, config=CONFIG, may_replace=False))
    write_task_configs(herder, A)
    assert not herder.pop_effects(Rejoin)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 1


def test_removed_tasks_of_a_connector_wait_for_the_window() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    write_connector(herder, A)
    write_task_configs(herder, A)
    herder.assign()
    write_task_configs(herder, A, tasks=1)
    assert not herder.pop_effects(Rejoin)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 1


def test_a_rejoin_requested_at_the_end_of_a_delay_includes_the_changes() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.assign(delay_ms=1_000)
    herder.now_ms += 1_000
    herder.feed(TimerFired(timer="delay over"))
    assert len(herder.pop_effects(Rejoin)) == 1
    write_connector(herder, A)
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0


def test_a_worker_that_lost_its_membership_requests_no_rejoin() -> None:
    herder = herder_without_jobs()
    write_connector(herder, A)
    herder.feed(MembershipLost(reason="silence"))
    assert requested_rejoins(herder, after_ms=WINDOW_MS) == 0
