"""Commits the offsets that tasks have read to their connector's consumer group, so that Kafka's tools show their lag.

A task resumes from its checkpoint only: the committed offsets are never read back, and a failed commit harms no task.
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
"""Offsets to be committed, by connector and task."""


@runtime_checkable
class HasGroupOffsets(Protocol):
    """A source whose positions are offsets in Kafka."""

    def group_offsets(self, checkpoint: Path) -> GroupOffsets:
        """The offsets up to which the batches committed in ``checkpoint`` have read, with their group and client."""
        ...


class LagReports:
    """Commits the offsets of the queries that ``running`` returns, every ``interval_ms``."""

    def __init__(self, running: Callable[[], Sequence[TaskQuery]], interval_ms: int) -> None:
        self._running = running
        self._interval_ms = interval_ms
        self._queries: dict[ConnectorTaskId, TaskQuery] = {}
        """The queries that ran at the last call of :meth:`report`. A query that has ended since is committed once more.
        """
        self._reported: dict[ConnectorTaskId, GroupOffsets] = {}
        self._failing: set[ConnectorName] = set()
        """Connectors whose failure was logged, until a commit succeeds."""

    def run(self, closing: threading.Event) -> None:
        """Call :meth:`report` every ``interval_ms`` until ``closing`` is set. Runs on a separate thread."""
        while not closing.wait(self._interval_ms / 1000):
            try:
                self.report(closing)
            except (Py4JError, OSError) as error:
                # The JVM is ending: the thread that waits for its exit reports that.
                log.debug("Committing offsets to consumer groups failed: %s", error)
            except Exception:
                log.exception(
                    "Committing offsets to consumer groups failed unexpectedly (a bug in Coterie); the tasks continue"
                )

    def report(self, closing: threading.Event) -> None:
        """Commit the offsets that have changed since the last call. After a cluster did not respond, this call skips
        it. Once ``closing`` is set, this call skips all clusters."""
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
        """``due`` by the properties of the client that commits it. Connectors that have failed come last, so that they
        do not delay the other connectors of their cluster each time."""
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
            # The checkpoint generation may have been removed.
            log.debug("%s: reading the offsets of the checkpoint failed: %s", query.task, error)
            return None

    def _commit_all(self, client: Mapping[str, str], due: Due, closing: threading.Event) -> bool:
        """Commit the offsets of connectors of one cluster. Returns False when the cluster does not respond."""
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
        except WorldError as error:  # The properties are not valid for a client.
            for connector, tasks in due.items():
                self._warn(connector, tasks, error)
        return True

    def _commit(
        self, admin: KafkaAdmin, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets]
    ) -> None:
        """Commit the offsets of tasks of one connector; all its tasks use one group."""
        together = {part: offset for offsets in tasks.values() for part, offset in offsets.offsets.items()}
        admin.commit(_first(tasks).group, together)
        self._failing.discard(connector)
        self._reported.update({task: offsets for task, offsets in tasks.items() if task in self._queries})

    def _warn(
        self, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets], error: CoterieError
    ) -> None:
        if connector not in self._failing:
            log.warning(
                "Connector %s: committing offsets to group %s failed, so Kafka's tools do not show the lag; "
                "the tasks continue: %s",
                connector, _first(tasks).group, first_sentence(error),
            )  # fmt: skip
        self._failing.add(connector)


def _first(tasks: Mapping[ConnectorTaskId, GroupOffsets]) -> GroupOffsets:
    """The offsets of any task of a connector: all its tasks have the same cluster and the same group."""
    return next(iter(tasks.values()))
