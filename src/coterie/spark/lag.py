"""Commits what tasks have read from Kafka to their connector's group, so that Kafka's tools show how far they lag.

A task goes on from its checkpoint alone: nothing here is ever read back, and a failure here harms no task.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from py4j.protocol import Py4JError

from coterie.nouns.errors import CoterieError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.query import TaskQuery
from coterie.spark.sources.kafka import SERVERS
from coterie.spark.sources.kafka_client import KafkaAdmin, kafka_admin
from coterie.spark.sources.kafka_positions import GroupOffsets
from coterie.spark.transforms import first_sentence

log = logging.getLogger(__name__)

Due: TypeAlias = Mapping[ConnectorName, Mapping[ConnectorTaskId, GroupOffsets]]
"""What is to be committed, by connector and task."""


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
                self.report(closing)
            except (Py4JError, OSError) as error:
                # The JVM is going: the thread that waits for it reports that.
                log.debug("no lag is reported to Kafka: %s", error)
            except Exception:
                log.exception("our own bug: no lag is reported to Kafka this time")

    def report(self, closing: threading.Event) -> None:
        """Commit what has changed since the last report. A cluster that does not answer is left out for the rest of the
        report, and all clusters are once ``closing`` is set."""
        running = {query.task: query for query in self._running()}
        due: defaultdict[ConnectorName, dict[ConnectorTaskId, GroupOffsets]] = defaultdict(dict)
        for task, query in {**self._queries, **running}.items():
            offsets = self._offsets_of(query)
            if offsets is not None and offsets.offsets and offsets != self._reported.get(task):
                due[task.connector][task] = offsets
        self._queries = running
        self._reported = {task: offsets for task, offsets in self._reported.items() if task in running}
        unanswered: set[str] = set()
        for client, connectors in self._by_client(due).items():
            properties = dict(client)
            servers = properties.get(SERVERS, "")
            if servers not in unanswered and not self._commit_all(properties, connectors, closing):
                unanswered.add(servers)

    def _by_client(self, due: Due) -> Mapping[frozenset[tuple[str, str]], Due]:
        """What is due, by the properties of the client that commits it. Connectors that have failed come last: none of
        them keeps the others of its cluster waiting in every report."""
        found: defaultdict[frozenset[tuple[str, str]], dict[ConnectorName, Mapping[ConnectorTaskId, GroupOffsets]]]
        found = defaultdict(dict)
        for connector in sorted(due, key=lambda name: name in self._failing):
            found[frozenset(_first(due[connector]).client.items())][connector] = due[connector]
        return found

    def _offsets_of(self, query: TaskQuery) -> GroupOffsets | None:
        if not isinstance(query.source, HasGroupOffsets) or query.taken:
            return None
        try:
            return query.source.group_offsets(query.held.path)
        except OSError as error:
            # Its generation may have been removed since.
            log.debug("%s: no lag is reported: %s", query.task, error)
            return None

    def _commit_all(self, client: Mapping[str, str], due: Due, closing: threading.Event) -> bool:
        """Commit what connectors of one cluster have read. Returns whether the cluster answers."""
        if closing.is_set():
            return True
        try:
            with kafka_admin(client) as admin:
                for connector, tasks in due.items():
                    if closing.is_set():
                        return True
                    try:
                        self._commit(admin, connector, tasks)
                    except CoterieError as error:
                        self._warn(connector, tasks, error)
                        if isinstance(error, UnreachableError):
                            return False
        except WorldError as error:  # The properties make no client.
            for connector, tasks in due.items():
                self._warn(connector, tasks, error)
        return True

    def _commit(
        self, admin: KafkaAdmin, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets]
    ) -> None:
        """Commit what tasks of one connector have read: they all use one group."""
        together = {part: offset for offsets in tasks.values() for part, offset in offsets.offsets.items()}
        admin.commit(_first(tasks).group, together)
        self._failing.discard(connector)
        self._reported.update({task: offsets for task, offsets in tasks.items() if task in self._queries})

    def _warn(
        self, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets], error: CoterieError
    ) -> None:
        if connector not in self._failing:
            log.warning(
                "Kafka does not show the lag of connector %s: group %s takes no offsets, and the tasks run on: %s",
                connector, _first(tasks).group, first_sentence(error),
            )  # fmt: skip
        self._failing.add(connector)


def _first(tasks: Mapping[ConnectorTaskId, GroupOffsets]) -> GroupOffsets:
    """Of any task: all of a connector have one cluster and one group."""
    return next(iter(tasks.values()))
