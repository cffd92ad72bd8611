"""Commits what tasks have read from Kafka to their connector's group, so that Kafka's tools show how far they lag.

A task goes on from its checkpoint alone: nothing here is ever read back, and a failure here harms no task.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from py4j.protocol import Py4JError

from coterie.nouns.errors import CoterieError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.query import TaskQuery
from coterie.spark.sources.kafka_client import kafka_admin
from coterie.spark.sources.kafka_positions import GroupOffsets
from coterie.spark.transforms import first_sentence

log = logging.getLogger(__name__)


@runtime_checkable
class HasGroupOffsets(Protocol):
    """A source whose positions are offsets in Kafka."""

    def group_offsets(self, checkpoint: Path) -> GroupOffsets:
        """What is read and committed in ``checkpoint``."""
        ...


class LagReports:
    """Commits the offsets of the queries that ``running`` returns, every ``interval_ms``."""

    def __init__(self, running: Callable[[], Sequence[TaskQuery]], interval_ms: int) -> None:
        self._running = running
        self._interval_ms = interval_ms
        self._queries: dict[ConnectorTaskId, TaskQuery] = {}
        """The queries that ran at the last report: one that has ended since gets a last one."""
        self._reported: dict[ConnectorTaskId, GroupOffsets] = {}
        self._failing: set[ConnectorName] = set()
        """Connectors whose failure is in the log, until a report succeeds."""

    def run(self, closing: threading.Event) -> None:
        """Report until ``closing`` is set. Runs on a thread of its own."""
        while not closing.wait(self._interval_ms / 1000):
            try:
                self.report()
            except (Py4JError, OSError) as error:
                # The JVM is going: the thread that waits for it reports that.
                log.debug("no lag is reported to Kafka: %s", error)
            except Exception:
                log.exception("our own bug: no lag is reported to Kafka this time")

    def report(self) -> None:
        """Commit what has changed since the last report."""
        running = {query.task: query for query in self._running()}
        due: defaultdict[ConnectorName, dict[ConnectorTaskId, GroupOffsets]] = defaultdict(dict)
        for task, query in {**self._queries, **running}.items():
            offsets = self._offsets_of(query)
            if offsets is not None and offsets.offsets and offsets != self._reported.get(task):
                due[task.connector][task] = offsets
        self._queries = running
        self._reported = {task: offsets for task, offsets in self._reported.items() if task in running}
        for connector, tasks in due.items():
            self._commit(connector, tasks)

    def _offsets_of(self, query: TaskQuery) -> GroupOffsets | None:
        if not isinstance(query.source, HasGroupOffsets) or query.taken:
            return None
        try:
            return query.source.group_offsets(query.held.path)
        except OSError as error:
            # Its generation may have been removed since.
            log.debug("%s: no lag is reported: %s", query.task, error)
            return None

    def _commit(self, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets]) -> None:
        """Commit what tasks of one connector have read: they all use one cluster and one group."""
        first = next(iter(tasks.values()))
        together = {part: offset for offsets in tasks.values() for part, offset in offsets.offsets.items()}
        try:
            with kafka_admin(first.client) as admin:
                admin.commit(first.group, together)
        except CoterieError as error:
            if connector not in self._failing:
                log.warning(
                    "Kafka does not show the lag of connector %s: group %s takes no offsets, and the tasks run on: %s",
                    connector, first.group, first_sentence(error),
                )  # fmt: skip
            self._failing.add(connector)
            return
        self._failing.discard(connector)
        self._reported.update({task: offsets for task, offsets in tasks.items() if task in self._queries})
