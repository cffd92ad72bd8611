"""Logs the number of bad records, which were left out: at most one line a minute for each task."""

import logging
import time
from collections.abc import Callable

from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.keys import BadRecordSettings
from coterie.spark.bad_records.separator import BadRowSummary

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 60
"""Shortest time between two log lines of a task, in seconds."""


class BadRecordLogReporter:
    """Counts the bad records in the committed batches of one run of a task. With ``errors.log.enable=true`` it logs the
    number."""

    def __init__(
        self, task: ConnectorTaskId, tolerance: BadRecordSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task = task
        self._tolerance = tolerance
        self._clock = clock
        self._unlogged_summary = BadRowSummary()
        self._last_logged_at_s: float | None = None
        self.bad_record_count = 0
        """Number of bad records in committed batches since the start of the task."""

    def count_and_log_when_due(self, summary: BadRowSummary) -> None:
        """Count the bad records of a committed batch. With ``errors.log.enable=true``, log the bad records since the
        last line if there is no line yet, or the last line is at least :data:`LOG_INTERVAL_S` old. Must be called after
        every batch, also after one without bad records: only this call writes a line."""
        self.bad_record_count += summary.count
        self._unlogged_summary = BadRowSummary(
            count=self._unlogged_summary.count + summary.count,
            first_bad_row_fields=self._unlogged_summary.first_bad_row_fields or summary.first_bad_row_fields,
        )
        now_s = self._clock()
        if (
            self._tolerance.logs_bad_record_counts
            and self._unlogged_summary.count
            and (self._last_logged_at_s is None or now_s - self._last_logged_at_s >= LOG_INTERVAL_S)
        ):
            self._last_logged_at_s = now_s
            log.warning("Task %s: %s", self._task, self._log_line_text())
            self._unlogged_summary = BadRowSummary()

    def _log_line_text(self) -> str:
        """The text of the log line: the number of bad records since the last line, and the error of the first of
        them."""
        first_bad_row = dict(self._unlogged_summary.first_bad_row_fields)
        line = (
            f"{self._unlogged_summary.count} bad records were left out, {self.bad_record_count} since the task "
            "started; "
        )
        if self._tolerance.logs_first_bad_record_position:
            names = [name for name in ("topic", "partition", "offset", "timestamp") if first_bad_row[name] is not None]
            line += f"the first: {', '.join(f'{name} {first_bad_row[name]}' for name in names)}: "
        else:
            line += "the first: "
        return f"{line}{first_bad_row['message']} ({first_bad_row['stage']})"
