"""Levels of loggers for all workers: any worker writes the line, each applies it while it runs."""

import pytest

from coterie.herder import config_records
from coterie.herder.config_records import LoggerLevelWritten
from coterie.herder.messages import (
    AppendConfigLines,
    AppendForLoggerLevel,
    ConfigLinesAppended,
    ConfigLinesAppendFailed,
    SetLoggerLevel,
    ShutdownOrdered,
    TimerFired,
)
from coterie.herder.requests.orders import SetGroupLoggerLevel
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.nouns.ids import LogPosition
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.membership import Leave
from tests.herder.builders import configured_herder
from tests.herder.herder_driver import HerderDriver

WRITTEN = LoggerLevelWritten(logger="a.b", level=LoggerLevel.DEBUG)
LINE = config_records.logger_level_line(WRITTEN)


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_is_answered_when_its_line_is_durable(fails: bool) -> None:
    driver = configured_herder()
    driver.effects.clear()
    id_ = driver.send_request(SetGroupLoggerLevel(logger="a.b", level=LoggerLevel.DEBUG))
    (append,) = driver.pop_effects(AppendConfigLines)
    assert append == AppendConfigLines(purpose=AppendForLoggerLevel(id=id_), lines=(LINE,))
    if fails:
        driver.feed(ConfigLinesAppendFailed(purpose=append.purpose, reason="no broker"))
        message = "Failed to write to the config topic: no broker"
        assert driver.answer(id_) == RequestRefused(problem=Problem.LOG_FAILED, message=message)
    else:
        driver.feed(ConfigLinesAppended(purpose=append.purpose, end_offset=LogPosition(99)))
        assert driver.answer(id_) == SuccessWithoutContent()


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_shuts_down_leaves_the_group_after_the_answer_to_the_request(fails: bool) -> None:
    driver = configured_herder()
    driver.effects.clear()
    id_ = driver.send_request(SetGroupLoggerLevel(logger="a.b", level=LoggerLevel.DEBUG))
    (append,) = driver.pop_effects(AppendConfigLines)
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.run_all_chores()
    assert not driver.pop_effects(Leave), "the line may still become durable"
    assert driver.answer(id_) is None
    if fails:
        driver.feed(ConfigLinesAppendFailed(purpose=append.purpose, reason="no broker"))
    else:
        driver.feed(ConfigLinesAppended(purpose=append.purpose, end_offset=LogPosition(99)))
    assert driver.answer(id_) is not None
    driver.run_all_chores()
    assert len(driver.pop_effects(Leave)) == 1


def test_a_shutdown_that_is_out_of_time_reports_that_the_line_may_still_be_written() -> None:
    driver = configured_herder()
    driver.effects.clear()
    id_ = driver.send_request(SetGroupLoggerLevel(logger="a.b", level=LoggerLevel.DEBUG))
    (append,) = driver.pop_effects(AppendConfigLines)
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.feed(TimerFired(timer="shutdown"))
    refusal = driver.answer(id_)
    assert isinstance(refusal, RequestRefused)
    assert refusal.problem is Problem.LOG_FAILED
    driver.feed(ConfigLinesAppended(purpose=append.purpose, end_offset=LogPosition(99)))
    assert driver.answer(id_) == refusal, "it was answered before"


def test_a_line_that_is_read_while_the_worker_runs_sets_the_level() -> None:
    driver = configured_herder()
    driver.write(LINE)
    assert driver.pop_effects(SetLoggerLevel) == [SetLoggerLevel(logger="a.b", level=LoggerLevel.DEBUG)]


def test_a_line_that_is_read_as_history_sets_no_level() -> None:
    driver = HerderDriver()
    driver.write(LINE, completes_first_read=True)
    driver.open_runtime()
    assert not driver.pop_effects(SetLoggerLevel)


def test_lines_that_are_written_while_the_runtime_opens_set_the_levels_in_their_order_when_it_is_open() -> None:
    driver = HerderDriver()
    driver.write(completes_first_read=True)
    parent = LoggerLevelWritten(logger="a", level=LoggerLevel.WARN)
    driver.write(LINE)
    driver.write(config_records.logger_level_line(parent))
    assert not driver.pop_effects(SetLoggerLevel), "the loggers of the runtime do not exist"
    driver.open_runtime()
    assert driver.pop_effects(SetLoggerLevel) == [
        SetLoggerLevel(logger=written.logger, level=written.level) for written in (WRITTEN, parent)
    ]
