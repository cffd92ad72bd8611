"""The log has at most one line a minute about dropped records."""

import logging

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records.keys import BadRecordSettings, NoDeadLetters
from coterie.spark.bad_records.report import BadRecordLogReporter
from coterie.spark.bad_records.separator import BadRowSummary

FIRST = {"stage": "S", "message": "no", "topic": "t", "partition": 1, "offset": 7, "timestamp": "now"}


def lines(caplog: pytest.LogCaptureFixture, *, logs: bool, logs_places: bool) -> list[str]:
    """The log lines about 3 bad records at second 0, 4 at 30, none at 59, and 1 at 60."""
    now = [0.0]
    tolerance = BadRecordSettings(
        dead_letter_destination=NoDeadLetters(), logs_bad_record_counts=logs, logs_first_bad_record_position=logs_places
    )
    report = BadRecordLogReporter(ConnectorTaskId(ConnectorName("c"), 2), tolerance, lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for now[0], count in ((0.0, 3), (30.0, 4), (59.0, 0), (60.0, 1)):
            report.count_and_log_when_due(
                BadRowSummary(count=count, first_bad_row_fields=tuple(FIRST.items()) if count else ())
            )
    assert report.bad_record_count == 8
    return [record.getMessage() for record in caplog.records]


def test_records_since_the_last_log_line_are_counted_in_at_most_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert lines(caplog, logs=True, logs_places=False) == [
        "Task c-2: 3 bad records were left out, 3 since the task started; the first: no (S)",
        "Task c-2: 5 bad records were left out, 8 since the task started; the first: no (S)",
    ]


def test_topic_partition_and_offset_of_a_record_are_logged_only_if_configured(caplog: pytest.LogCaptureFixture) -> None:
    first, _ = lines(caplog, logs=True, logs_places=True)
    assert first.endswith("the first: topic t, partition 1, offset 7, timestamp now: no (S)")


def test_nothing_is_logged_without_errors_log_enable(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, logs=False, logs_places=True) == []
