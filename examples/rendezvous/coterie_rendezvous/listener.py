"""A listener that appends each rebalance of its worker to a file, as one line of JSON."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from coterie.nouns.ids import GroupEpoch
from coterie.nouns.jobs import Jobs

FILE_VARIABLE = "REBALANCE_JOURNAL"
"""The environment variable with the path of the file. Each worker needs its own file."""


class JournalListener:
    """Implements `coterie.assignors.connect.interface.WorkerRebalanceListener`."""

    def __init__(self) -> None:
        """:raises ValueError: when `FILE_VARIABLE` is not set. The worker then does not start, and logs the reason."""
        path = os.environ.get(FILE_VARIABLE)
        if not path:
            raise ValueError(f"the environment variable {FILE_VARIABLE} must have the path of the journal")
        self._file = Path(path)

    def on_revoked(self, jobs: Jobs) -> None:
        self._append("revoked", jobs)

    def on_assigned(self, jobs: Jobs, assignment_epoch: GroupEpoch) -> None:
        self._append("assigned", jobs, assignment_epoch=assignment_epoch)

    def on_lost(self, jobs: Jobs) -> None:
        self._append("lost", jobs)

    def _append(self, event: str, jobs: Jobs, **more: int) -> None:
        line = {"at": datetime.now(UTC).isoformat(), "event": event, "jobs": [str(job) for job in jobs], **more}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
