"""Commits the offsets that tasks have read to their connector's consumer group, so that Kafka's tools show the tasks'
lag.

A task resumes from its checkpoint only: the committed offsets are never read back, and a failed commit harms no task.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from py4j.protocol import Py4JError

from coterie.nouns.errors import CoterieError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.plugin_calls import PluginCall, PluginCalls, PluginTimeoutError, as_exception
from coterie.spark.query import TaskQuery
from coterie.spark.sources.kafka import BOOTSTRAP_SERVERS
from coterie.spark.sources.kafka_client import KafkaAdmin, kafka_admin
from coterie.spark.sources.kafka_positions import GroupOffsets
from coterie.spark.transforms import first_message_line

log = logging.getLogger(__name__)

READ_CALLS = CallQueueSpec(name="group offsets", concurrent_calls_max=4)
"""The calls that read the offsets of one task from its source."""
READ_TIMEOUT_S = 5
"""How long, in seconds, :meth:`OffsetCommitter.commit_changed_offsets` waits for the sources that it has asked for
offsets. A later call takes the offsets of a source that needs longer."""

PendingOffsets: TypeAlias = Mapping[ConnectorName, Mapping[ConnectorTaskId, GroupOffsets]]
"""Offsets to be committed, by connector and task."""


@runtime_checkable
class HasGroupOffsets(Protocol):
    """A source whose positions are offsets in Kafka."""

    def group_offsets(self, checkpoint: Path) -> GroupOffsets:
        """The offsets up to which the batches committed in ``checkpoint`` have read, with the consumer group to which
        they are committed and the properties of the Kafka client that commits them.

        :raises OSError: when the checkpoint cannot be read.
        """
        ...


class OffsetCommitter:
    """Commits the offsets that the queries of ``running_and_stopping_queries`` have read to the consumer groups of
    their connectors, at intervals of ``interval_ms``. The sources of the queries are asked for the offsets by calls of
    ``calls``."""

    def __init__(
        self, running_and_stopping_queries: Callable[[], Sequence[TaskQuery]], interval_ms: int, calls: PluginCalls
    ) -> None:
        self._running_queries = running_and_stopping_queries
        self._calls = calls
        self._read_calls: dict[ConnectorTaskId, PluginCall] = {}
        """By task, the calls whose results are still to be taken, and those that were abandoned and have not
        returned."""
        self._unreadable_tasks: set[ConnectorTaskId] = set()
        """Tasks whose source has failed to return their offsets. For each task only the first failure is logged, until
        the source returns offsets again."""
        self._interval_ms = interval_ms
        self._last_queries: dict[ConnectorTaskId, TaskQuery] = {}
        """The queries that ran at the last call of :meth:`commit_changed_offsets`. The offsets of a query that has
        ended since then are committed once more."""
        self._committed_offsets: dict[ConnectorTaskId, GroupOffsets] = {}
        """The offsets that were committed last for each running task."""
        self._failing_connectors: set[ConnectorName] = set()
        """Connectors whose last commit failed. For each connector only the first failure is logged, until a commit
        succeeds."""

    def commit_repeatedly_until_closing(self, closing: threading.Event) -> None:
        """Call :meth:`commit_changed_offsets` every ``interval_ms``, first after ``interval_ms``, until ``closing`` is
        set. Errors are logged. Runs on a separate thread."""
        while not closing.wait(self._interval_ms / 1000):
            try:
                self.commit_changed_offsets(closing)
            except (Py4JError, OSError) as error:
                # The JVM is ending: the thread that waits for its exit reports that.
                log.debug("Committing offsets to consumer groups failed: %s", error)
            except Exception:
                log.exception(
                    "Committing offsets to consumer groups failed unexpectedly (a bug in Coterie); the tasks continue, "
                    "and the next attempt follows in %d ms",
                    self._interval_ms,
                )

    def commit_changed_offsets(self, closing: threading.Event) -> None:
        """Commit the offsets of each task that differ from the offsets committed last for it; so a commit that failed
        is tried again by the next call. After a cluster has not responded to one commit, its other offsets wait for the
        next call. No commit begins once ``closing`` is set.

        :raises Py4JError, OSError: when the JVM has ended.
        """
        running_and_stopping_queries = {query.task: query for query in self._running_queries()}
        pending: defaultdict[ConnectorName, dict[ConnectorTaskId, GroupOffsets]] = defaultdict(dict)
        for task, offsets in self._request_and_take_arrived_offsets(
            {**self._last_queries, **running_and_stopping_queries}, closing
        ).items():
            if offsets.next_offsets and offsets != self._committed_offsets.get(task):
                pending[task.connector][task] = offsets
        self._last_queries = running_and_stopping_queries
        self._committed_offsets = {
            task: offsets for task, offsets in self._committed_offsets.items() if task in running_and_stopping_queries
        }
        unreachable_servers: set[str] = set()
        for client, connectors in self._pending_offsets_by_client(pending).items():
            properties = dict(client)
            servers = properties.get(BOOTSTRAP_SERVERS, "")
            if servers not in unreachable_servers and not self._try_commit_and_check_cluster_responds(
                properties, connectors, closing
            ):
                unreachable_servers.add(servers)

    def _pending_offsets_by_client(
        self, pending: PendingOffsets
    ) -> Mapping[frozenset[tuple[str, str]], PendingOffsets]:
        """``pending``, grouped by the properties of the Kafka client that commits the offsets. Connectors whose last
        commit failed come last, so that they do not delay the other connectors of their cluster each time."""
        pending_by_client: defaultdict[
            frozenset[tuple[str, str]], dict[ConnectorName, Mapping[ConnectorTaskId, GroupOffsets]]
        ]
        pending_by_client = defaultdict(dict)
        for connector in sorted(pending, key=lambda name: name in self._failing_connectors):
            pending_by_client[frozenset(_offsets_of_any_task(pending[connector]).client_properties.items())][
                connector
            ] = pending[connector]
        return pending_by_client

    def _request_and_take_arrived_offsets(
        self, queries: Mapping[ConnectorTaskId, TaskQuery], closing: threading.Event
    ) -> Mapping[ConnectorTaskId, GroupOffsets]:
        """Ask the sources of ``queries`` for the offsets that they have read, wait :data:`READ_TIMEOUT_S` at most, and
        return the offsets that have arrived, by task: also those that an earlier call of this method has asked for and
        that have arrived since. While a source has not returned its offsets, it is not asked again. Tasks whose source
        has no offsets in Kafka, or whose checkpoint cannot be read, are missing. Another failure of a source is logged,
        once until the source succeeds.

        :raises Py4JError: when the JVM has ended.
        """
        for task, query in queries.items():
            if isinstance(query.source, HasGroupOffsets) and task not in self._read_calls:
                self._read_calls[task] = self._calls.submit(
                    READ_CALLS,
                    f"task {task}",
                    partial(self._read_checkpoint_offsets, query, query.source),
                    stage="group_offsets",
                )
        futures.wait([call.future for call in self._read_calls.values()], READ_TIMEOUT_S)
        offsets_by_task: dict[ConnectorTaskId, GroupOffsets] = {}
        for task, call in [(task, call) for task, call in self._read_calls.items() if call.future.done()]:
            error = call.future.exception()
            if isinstance(error, PluginTimeoutError) and not call.has_function_ended:
                continue
            del self._read_calls[task]
            match error:
                case None:
                    self._unreadable_tasks.discard(task)
                    if (offsets := call.future.result()) is not None:
                        offsets_by_task[task] = offsets
                case Py4JError():
                    raise error
                case PluginTimeoutError():
                    pass  # It was logged when the call was abandoned.
                case _ if task not in self._unreadable_tasks and not closing.is_set():
                    self._unreadable_tasks.add(task)
                    log.warning(
                        "Task %s: its source does not return the offsets that the task has read, so Kafka's tools do "
                        "not show the lag; it is asked again, and the task continues: %s",
                        task, first_message_line(as_exception(error)),
                    )  # fmt: skip
        return offsets_by_task

    def _read_checkpoint_offsets(self, query: TaskQuery, source: HasGroupOffsets) -> GroupOffsets | None:
        """The offsets that the query of ``source`` has read. None when another start has taken over the checkpoint, or
        the checkpoint cannot be read."""
        if query.was_checkpoint_taken_over:
            return None
        try:
            return source.group_offsets(query.held_checkpoint.path)
        except OSError as error:
            # The checkpoint generation may have been removed.
            log.debug("Task %s: reading the offsets of the checkpoint failed: %s", query.task, error)
            return None

    def _try_commit_and_check_cluster_responds(
        self, client_properties: Mapping[str, str], pending: PendingOffsets, closing: threading.Event
    ) -> bool:
        """Commit ``pending``, the offsets of connectors of one cluster, by one Kafka client.

        Returns False when the cluster does not respond; the remaining connectors are then skipped. Returns True
        otherwise, also when commits failed for another reason and when ``closing`` is set. Failures are logged.
        """
        if closing.is_set():
            return True
        try:
            with kafka_admin(client_properties) as admin:
                for connector, tasks in pending.items():
                    if closing.is_set():
                        return True
                    try:
                        self._commit_offsets_of_connector(admin, connector, tasks)
                    except CoterieError as error:
                        self._record_failure_and_log_first(connector, tasks, error)
                        if isinstance(error, UnreachableError):
                            return False
        except WorldError as error:  # The properties are not valid for a client.
            for connector, tasks in pending.items():
                self._record_failure_and_log_first(connector, tasks, error)
        return True

    def _commit_offsets_of_connector(
        self, admin: KafkaAdmin, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets]
    ) -> None:
        """Commit the offsets of tasks of one connector in one request: all tasks of a connector have one group.

        :raises CoterieError: when the commit fails.
        """
        offset_by_partition = {
            partition: offset for offsets in tasks.values() for partition, offset in offsets.next_offsets.items()
        }
        admin.alter_group_offsets(_offsets_of_any_task(tasks).group_id, offset_by_partition)
        self._failing_connectors.discard(connector)
        self._committed_offsets.update({task: offsets for task, offsets in tasks.items() if task in self._last_queries})

    def _record_failure_and_log_first(
        self, connector: ConnectorName, tasks: Mapping[ConnectorTaskId, GroupOffsets], error: CoterieError
    ) -> None:
        """Record that a commit of ``connector`` failed with ``error``, and log that, unless the connector's previous
        commit failed too."""
        if connector not in self._failing_connectors:
            log.warning(
                "Connector %s: committing offsets to group %s failed, so Kafka's tools do not show the lag; "
                "this is tried again, and the tasks continue: %s",
                connector, _offsets_of_any_task(tasks).group_id, first_message_line(error),
            )  # fmt: skip
        self._failing_connectors.add(connector)


def _offsets_of_any_task(tasks: Mapping[ConnectorTaskId, GroupOffsets]) -> GroupOffsets:
    """The offsets of the first of ``tasks``, for their client and group: these are the same for all tasks of a
    connector."""
    return next(iter(tasks.values()))
