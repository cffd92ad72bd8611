"""Only the leader reports the configured jobs, and only when it has read the config log to its end."""

from coterie.herder import config_records
from coterie.herder.messages import ConfigLogEndLookupEnded, FindConfigLogEnd, TimerFired
from coterie.nouns.ids import LogPosition
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import SetConfiguredJobs
from tests.herder.builders import ALL_JOBS, CONFIG, CONNECTOR_LINE, INCARNATION, TASK_CONFIG_LINES
from tests.herder.herder_driver import ME
from tests.herder.targets.connect_driver import ConnectHerderDriver, configured_driver

MORE_LINE = config_records.connector_line(ConnectorName("more"), CONFIG, INCARNATION)


def answer_lookup(driver: ConnectHerderDriver, end_offset: int | None) -> None:
    """The config log's end offset is found, or the log cannot be reached (None)."""
    (lookup,) = driver.pop_effects(FindConfigLogEnd)
    end = None if end_offset is None else LogPosition(end_offset)
    driver.feed(ConfigLogEndLookupEnded(purpose=lookup.purpose, end_offset=end))


def test_the_leader_reports_all_configured_jobs() -> None:
    driver = configured_driver()
    driver.receive(leader=ME)
    assert not driver.pop_effects(SetConfiguredJobs), "the end of the log is not known yet"
    answer_lookup(driver, len(driver.config))
    (report,) = driver.pop_effects(SetConfiguredJobs)
    assert (report.jobs, report.config_offset) == (ALL_JOBS, len(driver.config))


def test_a_leader_that_has_read_a_part_of_the_log_reports_when_it_has_read_the_rest() -> None:
    driver = ConnectHerderDriver()
    driver.open_runtime()
    driver.write(CONNECTOR_LINE)
    driver.receive(leader=ME)
    answer_lookup(driver, 1 + len(TASK_CONFIG_LINES))
    assert not driver.pop_effects(SetConfiguredJobs)
    driver.write(*TASK_CONFIG_LINES)
    (report,) = driver.pop_effects(SetConfiguredJobs)
    assert report.jobs == ALL_JOBS


def test_each_change_of_the_set_of_jobs_is_reported_once() -> None:
    driver = configured_driver()
    driver.receive(leader=ME)
    answer_lookup(driver, len(driver.config))
    driver.pop_effects(SetConfiguredJobs)
    driver.write(MORE_LINE)
    (report,) = driver.pop_effects(SetConfiguredJobs)
    assert report.jobs.connectors == ALL_JOBS.connectors | {"more"}
    driver.write(config_records.connector_line(ConnectorName("more"), {**CONFIG, "a": "b"}, INCARNATION))
    assert not driver.pop_effects(SetConfiguredJobs), "a changed config is no changed set of jobs"


def test_a_failed_lookup_is_repeated_after_a_pause() -> None:
    driver = configured_driver()
    driver.receive(leader=ME)
    answer_lookup(driver, None)
    assert not driver.pop_effects(SetConfiguredJobs)
    driver.feed(TimerFired(timer="configured end"))
    answer_lookup(driver, len(driver.config))
    assert len(driver.pop_effects(SetConfiguredJobs)) == 1


def test_a_worker_that_is_no_longer_the_leader_reports_nothing() -> None:
    driver = configured_driver()
    driver.receive(leader=ME)
    answer_lookup(driver, len(driver.config))
    driver.receive()
    driver.pop_effects(SetConfiguredJobs)
    driver.write(MORE_LINE)
    assert not driver.pop_effects(SetConfiguredJobs)


def test_a_worker_that_becomes_leader_again_looks_the_end_up_again() -> None:
    driver = configured_driver()
    driver.receive(leader=ME)
    answer_lookup(driver, len(driver.config))
    driver.pop_effects(SetConfiguredJobs)
    driver.receive(leader=ME, leader_epoch=3)
    answer_lookup(driver, len(driver.config))
    assert len(driver.pop_effects(SetConfiguredJobs)) == 1


def test_an_assignment_within_the_same_leader_epoch_repeats_nothing() -> None:
    driver = configured_driver()
    driver.receive(leader=ME)
    answer_lookup(driver, len(driver.config))
    driver.pop_effects(SetConfiguredJobs)
    driver.receive(leader=ME)
    assert not driver.pop_effects(FindConfigLogEnd)
    assert not driver.pop_effects(SetConfiguredJobs)
