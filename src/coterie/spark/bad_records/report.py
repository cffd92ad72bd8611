"""Logs the number of bad records, which were left out: at most one line a minute for each task."""

import logging
import time
from collections.abc import Callable

from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.keys import ErrorTolerance
from coterie.spark.bad_records.separator import BadRowSummary

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 60
"""Shortest time between two log lines of a task, in seconds."""


class BadRecordLogReporter:
    """Counts the bad records in the committed batches of one run of a task. With ``errors.log.enable=true`` it logs the
    number."""

    def __init__(
        self, task: ConnectorTaskId, tolerance: ErrorTolerance, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task = task
        self._tolerance = tolerance
        self._clock = clock
        self._since = BadRowSummary()
        self._logged_at: float | None = None
        self.count = 0
        """Number of bad records in committed batches."""

    def add_batch(self, summary: BadRowSummary) -> None:
        """Count the bad records of a committed batch. With ``errors.log.enable=true``, log the bad records since the
        last line if there is no line yet, or the last line is at least :data:`LOG_INTERVAL_S` old. Must be called after
        every batch, also after one without bad records: only this call writes a line."""
        self.count += summary.count
        self._since = BadRowSummary(count=self._since.count + summary.count, first=self._since.first or summary.first)
        now = self._clock()
        if (
            self._tolerance.logs_errors
            and self._since.count
            and (self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S)
        ):
            self._logged_at = now
            log.warning("%s: %s", self._task, self._line())
            self._since = BadRowSummary()

    def _line(self) -> str:
        """The log line about the bad records since the last line."""
        first = dict(self._since.first)
        line = f"{self._since.count} bad records were left out, {self.count} since the task started; "
        if self._tolerance.logs_record_positions:
            names = [name for name in ("topic", "partition", "offset", "timestamp") if first[name] is not None]
            line += f"the first: {', '.join(f'{name} {first[name]}' for name in names)}: "
        else:
            line += "the first: "
        return f"{line}{first['message']} ({first['stage']})"
