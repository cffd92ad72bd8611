"""A worker process that stops itself (SIGSTOP) at a named point of the leader's log, once; run by
test_stopped_leader.

Arguments: the worker's properties as JSON, the point, and a file to which each append that has succeeded adds a line.
"""

import asyncio
import json
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from coterie.cli.workers import compose
from coterie.config.worker import WorkerSettings
from coterie.engine.log import NewTopicRecord
from coterie.kafka.leader_log import LeaderTopicLog
from coterie.rest.server import open_listeners
from tests.worker.simulated import SimulatedRuntime

BEFORE_OPENING, AFTER_OPENING, IN_TRANSACTION = "before the opening", "after the opening", "in a transaction"


def stop_at(point: str, appended: Path) -> None:
    """Let this process stop when it is at ``point`` for the first time."""
    open_log, commit, append = (
        LeaderTopicLog.open_blocking,
        LeaderTopicLog.commit_blocking,
        LeaderTopicLog.append_blocking,
    )
    points = [point]

    def reach(here: str) -> None:
        if here in points:
            points.remove(here)
            # A signal to the process might stop this thread later than the call returns.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def stopping_open(self: LeaderTopicLog, transaction_timeout_ms: int) -> None:
        reach(BEFORE_OPENING)
        open_log(self, transaction_timeout_ms)
        reach(AFTER_OPENING)

    def stopping_commit(self: LeaderTopicLog, producer: Producer) -> None:
        reach(IN_TRANSACTION)
        commit(self, producer)

    def noted_append(self: LeaderTopicLog, records: Sequence[NewTopicRecord]) -> int:
        offset = append(self, records)
        with appended.open("a") as file:
            file.write(f"{[record.key for record in records]}\n")
        return offset

    LeaderTopicLog.open_blocking = stopping_open  # type: ignore[method-assign]
    LeaderTopicLog.commit_blocking = stopping_commit  # type: ignore[method-assign]
    LeaderTopicLog.append_blocking = noted_append  # type: ignore[method-assign]


async def main() -> None:
    properties, point, appended = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    stop_at(point, appended)
    settings = WorkerSettings.from_properties(properties)
    with open_listeners(settings.rest_listeners, settings.rest_tls) as listeners:
        await compose.serve_worker(settings, listeners, lambda *_: SimulatedRuntime(), on_created=lambda _: None)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main())
