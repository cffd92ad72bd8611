"""A worker process that stops itself (SIGSTOP) at a named point of the leader's log, once; run by
test_stopped_leader.

Arguments: the worker's properties as JSON, the point, whether the writes are fenced ("yes" or "no"), and a file. Each
point that is passed, and the value of each line that was appended, adds a line to the file.

Without the fence the worker is as a leader without it would be: it initialises its producer, whose transactional id no
other worker has, only when it has a line to write, after the heartbeat that has confirmed it as the leader.
"""

import asyncio
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer

from coterie.cli.workers import compose
from coterie.config.worker import WorkerSettings
from coterie.engine.log import NewTopicRecord
from coterie.kafka.leader_log import LeaderTopicLog
from coterie.rest.server import open_listeners
from tests.worker.simulated import SimulatedRuntime

BEFORE_OPENING, AFTER_OPENING, IN_TRANSACTION = "before the opening", "after the opening", "in a transaction"
POINTS = (BEFORE_OPENING, AFTER_OPENING, IN_TRANSACTION)
"""In the order in which a leader passes them."""
APPENDED = "appended "
LONG_TRANSACTION_MS = 60_000


def stop_at(point: str, notes: Path, *, is_fenced: bool) -> None:
    """Let this process stop when it is at ``point`` for the first time."""
    opening, commit, append = (
        LeaderTopicLog.open_blocking,
        LeaderTopicLog.commit_blocking,
        LeaderTopicLog.append_blocking_and_return_last_offset,
    )
    points = [point]

    def note(text: str) -> None:
        with notes.open("a") as file:
            file.write(f"{text}\n")

    def reach(here: str) -> None:
        note(here)
        if here in points:
            points.remove(here)
            # A signal to the process might stop this thread later than the call returns.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def stopping_open(self: LeaderTopicLog, transaction_timeout_ms: int) -> None:
        reach(BEFORE_OPENING)
        opening(self, transaction_timeout_ms)
        reach(AFTER_OPENING)

    def no_open(self: LeaderTopicLog, transaction_timeout_ms: int) -> None:
        """Do nothing: the producer is initialised by the first append."""

    def stopping_commit(self: LeaderTopicLog, producer: Producer) -> None:
        reach(IN_TRANSACTION)
        commit(self, producer)

    def noted_append(
        self: LeaderTopicLog, records: Sequence[NewTopicRecord], announce_commit: Callable[[int], None]
    ) -> int:
        if self._producer is None and not is_fenced:
            self._transactional_id += "-unfenced"
            stopping_open(self, LONG_TRANSACTION_MS)
        offset = append(self, records, announce_commit)
        for record in records:
            note(APPENDED + (record.value or b"").hex())
        return offset

    LeaderTopicLog.open_blocking = stopping_open if is_fenced else no_open  # type: ignore[method-assign]
    LeaderTopicLog.commit_blocking = stopping_commit  # type: ignore[method-assign]
    LeaderTopicLog.append_blocking_and_return_last_offset = noted_append  # type: ignore[method-assign]


async def main() -> None:
    properties, point, is_fenced, notes = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "yes", Path(sys.argv[4])
    stop_at(point, notes, is_fenced=is_fenced)
    settings = WorkerSettings.from_properties(properties)
    with open_listeners(settings.rest_listeners, settings.rest_tls) as listeners:
        await compose.run_worker_and_serve_rest(
            settings, listeners, lambda *_: SimulatedRuntime(), on_created=lambda _: None
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
