"""Logs the number of records that were left out: one line a minute for each task."""

import logging
import time
from collections.abc import Callable

from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.keys import Tolerance
from coterie.spark.bad_records.sifted import Tally

log = logging.getLogger(__name__)

EVERY_S = 60


class Report:
    """Counts the bad records of one run of a task, and logs them."""

    def __init__(
        self, task: ConnectorTaskId, tolerance: Tolerance, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task = task
        self._tolerance = tolerance
        self._clock = clock
        self._since = Tally()
        self._logged_at: float | None = None
        self.count = 0
        """Number of bad records in committed batches."""

    def add(self, tally: Tally) -> None:
        """Count the bad records of a committed batch. Must be called for every batch."""
        self.count += tally.count
        self._since = Tally(count=self._since.count + tally.count, first=self._since.first or tally.first)
        now = self._clock()
        if self._tolerance.logs and self._since.count and (self._logged_at is None or now - self._logged_at >= EVERY_S):
            self._logged_at = now
            log.warning("%s: %s", self._task, self._line())
            self._since = Tally()

    def _line(self) -> str:
        first = dict(self._since.first)
        line = f"{self._since.count} bad records were left out, {self.count} since the task started; "
        if self._tolerance.logs_places:
            names = [name for name in ("topic", "partition", "offset", "timestamp") if first[name] is not None]
            line += f"the first: {', '.join(f'{name} {first[name]}' for name in names)}: "
        else:
            line += "the first: "
        return f"{line}{first['message']} ({first['stage']})"
