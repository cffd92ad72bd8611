"""Splits connectors: makes a connector's newest checkpoint generation match its config and returns the task configs."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.herder.seams import SourcePartsChanged, SplitEndedError
from coterie.nouns.errors import ConfigError, CoterieError, UnreachableError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records import queue
from coterie.spark.checkpoint import HeldCheckpoint, batch_in_flight, is_taken_over
from coterie.spark.events import Events
from coterie.spark.failures import message_of
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.layout import GenerationId, connector_folder
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.resplit import ResplitFinisher, SupersededError
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.updater import GenerationRequest, GenerationUpdater, newest_plan_or_manifest
from coterie.spark.in_flight import config_for_batch_in_flight
from coterie.spark.pipeline import GENERATION, Pipeline, resolved, split_of, task_configs
from coterie.spark.plugins import ConfiguredSource, configured_sink, configured_source, sink_identity
from coterie.spark.query import TaskQuery
from coterie.spark.seams import TaskLineage
from coterie.spark.session import SparkDriver
from coterie.spark.settings import SparkConfig
from coterie.spark.task_timeouts import METADATA_MAX_AGE
from coterie.spark.transforms import first_line
from coterie.spark.validation import common, sink_errors, source_errors, split_errors

log = logging.getLogger(__name__)

RELEASE_GRACE_MS = 15_000
"""How long a re-split waits, from the closing of a checkpoint generation, until its tasks have stopped. Then the
re-split continues also without those that still run. Consists of the tasks' own grace and the time until their workers
detect that the generation is closed."""
POLL_INTERVAL_S = 0.5
"""Interval at which :meth:`Splitter.watch_parts` checks whether a source's partitions have to be listed."""
SOURCE_QUERY_TIMEOUT_S = 2
"""How long a source that does not respond when its partitions are listed may delay the other sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSource:
    """The source of a connector that this worker has split. Its partitions are listed again at intervals, to detect new
    and removed ones."""

    source: ConfiguredSource
    parts: Sequence[str]
    """The source partitions at the time of the split."""
    max_age_s: float
    """The interval in seconds; ``metadata.max.age.ms`` of the connector."""
    last_checked_s: float
    """The monotonic second in which the source partitions were last listed."""

    @property
    def next_check_s(self) -> float:
        """The monotonic second from which the source partitions have to be listed again."""
        return self.last_checked_s + self.max_age_s


class Splitter:
    """Splits connectors on the Spark that ``driver`` returns; ``driver`` raises WorldError when Spark is not running.

    A split divides a connector's input between its tasks. A re-split is a split with new input or another sink: it
    closes the checkpoint generation, finishes its batches in flight and creates the next generation. Split methods may
    block: they are called on threads.
    """

    def __init__(self, config: SparkConfig, events: Events, driver: Callable[[], SparkDriver]) -> None:
        self._config = config
        self._events = events
        self._driver = driver
        self._lock = threading.Lock()
        self._fences: dict[Fence, ConnectorName] = {}
        """The fences of the running :meth:`split` and :meth:`finish_checkpoint_generation` calls."""
        self._watched: dict[ConnectorName, WatchedSource] = {}
        """The sources whose partitions :meth:`watch_parts` lists, by connector."""

    def open_fence(self, connector: ConnectorName) -> Fence:
        """A new fence, to be passed to one call of :meth:`split` or :meth:`finish_checkpoint_generation` of
        ``connector``. :meth:`stop_connector` and :meth:`close_nowait` close the fence, also before that call begins."""
        fence = Fence()
        with self._lock:
            self._fences[fence] = connector
        return fence

    def split(
        self,
        fence: Fence,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed_task_configs: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> list[Mapping[str, str]]:
        """See :meth:`coterie.herder.seams.TaskRuntime.split`. ``fence``: a new one from :meth:`open_fence`. The
        source's partitions are watched afterwards (:meth:`watch_parts`)."""
        with self._fenced_operation(fence, connector):
            source = configured_source(resolved(config), self._config.kafka)
            if errors := source_errors(source, checkpointed_task_configs) | sink_errors(
                source, checkpointed_task_configs
            ):
                raise ConfigError(errors)
            asked_at, max_age_ms = time.monotonic(), common().read(config, METADATA_MAX_AGE.name, int)
            parts = source.plugin.parts(source.config)
            split = split_of(source, parts)
            if source.plugin.has_fixed_split and (
                errors := split_errors(config, len(split.tasks), checkpointed_task_configs)
            ):
                raise ConfigError(errors)
            is_known = any(GENERATION in task for task in checkpointed_task_configs)
            wanted = GenerationRequest(
                config=config,
                split=split,
                sink_identity_of=self._sink_identity,
                initial_positions=partial(source.plugin.initial_positions, source.config),
                keys_to_infer=frozenset(source.plugin.keys_to_infer(source.config)),
                infer=lambda known: source.plugin.infer(self._driver().spark, source.config.with_defaults(known)),
                is_split_fixed=source.plugin.has_fixed_split,
                was_started=is_known,
                generation_zero=self._generation_zero_manifest(checkpointed_task_configs)
                if checkpointed_task_configs and not is_known
                else None,
                keeps_source_parts=keeps_source_parts,
            )
            resplit = self._finisher(fence, connector, incarnation, config, parts)
            manifest = GenerationUpdater(resplit, grace_ms=RELEASE_GRACE_MS).update(wanted)
            with self._lock:
                if not fence.is_closed:
                    self._watched[connector] = WatchedSource(
                        source=source, parts=parts, max_age_s=max_age_ms / 1000, last_checked_s=asked_at
                    )
            return task_configs(connector, config, manifest)

    def finish_checkpoint_generation(
        self, fence: Fence, connector: ConnectorName, incarnation: Incarnation
    ) -> list[Mapping[str, str]] | None:
        """See :meth:`coterie.herder.seams.TaskRuntime.finish_checkpoint_generation`. Also None when the connector has
        no checkpoint generation. ``fence``: a new one from :meth:`open_fence`."""
        with self._fenced_operation(fence, connector):
            folder = connector_folder(self._config.checkpoint_location, connector, incarnation)
            if (stated := newest_plan_or_manifest(folder)) is None:
                return None
            parts = [part for task in stated.split.tasks for part in task]
            resplit = self._finisher(fence, connector, incarnation, stated.config, parts)
            manifest = GenerationUpdater(resplit, grace_ms=RELEASE_GRACE_MS).finish_if_abandoned()
            # Use the checkpoint generation's config and not the connector's: if the generation does not match the
            # connector's config, the worker that has the connector creates another one.
            return None if manifest is None else task_configs(connector, manifest.config, manifest)

    def stop_connector(self, connector: ConnectorName) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.stop_connector`."""
        with self._lock:
            self._watched.pop(connector, None)
            for fence, name in self._fences.items():
                if name == connector:
                    fence.close_nowait()

    def watch_parts(self, closing: threading.Event) -> None:
        """List the partitions of the watched sources at their intervals, and report each connector whose source
        partitions differ from those at its split (:class:`SourcePartsChanged`), until ``closing`` is set. Runs on a
        separate thread.

        After a report the connector is not checked before its next split. A source that does not respond delays the
        other sources by :data:`SOURCE_QUERY_TIMEOUT_S` at most, and is not checked again before it has responded.
        """
        looks: dict[ConnectorName, threading.Thread] = {}
        while not closing.wait(POLL_INTERVAL_S):
            looks = {connector: look for connector, look in looks.items() if look.is_alive()}
            now = time.monotonic()
            with self._lock:
                due = sorted(
                    name for name, one in self._watched.items() if one.next_check_s <= now and name not in looks
                )
            for connector in due:
                look = threading.Thread(
                    target=self._check_source_partitions, args=(connector,), name="coterie-look", daemon=True
                )
                look.start()
                look.join(SOURCE_QUERY_TIMEOUT_S)
                looks[connector] = look
                if closing.is_set():
                    return

    def _check_source_partitions(self, connector: ConnectorName) -> None:
        """Report ``connector`` if its source partitions have changed since this worker split it. Does nothing if it is
        not watched; a source that cannot be listed is logged and listed again later."""
        with self._lock:
            before = self._watched.get(connector)
        if before is None:
            return
        now = replace(before, last_checked_s=time.monotonic())
        has_changed = False
        try:
            has_changed = sorted(before.source.plugin.parts(before.source.config)) != sorted(before.parts)
        except Exception as error:  # noqa: BLE001 - a source may raise anything; the tasks report their own failures
            log.warning("Connector %s: listing the source's partitions failed: %s", connector, first_line(error))
        with self._lock:
            if self._watched.get(connector) is not before:
                return
            if not has_changed:
                self._watched[connector] = now
                return
            del self._watched[connector]
        self._events.put(SourcePartsChanged(connector=connector))

    def close_nowait(self) -> None:
        """Close the fences of all running splits: they commit no checkpoint generation and no batch in flight any more,
        except in a step that is already running. Does not wait."""
        with self._lock:
            for fence in self._fences:
                fence.close_nowait()

    @contextmanager
    def _fenced_operation(self, fence: Fence, connector: ConnectorName) -> Iterator[None]:
        """Run one split, or finish one closed checkpoint generation, in the block; then remove ``fence`` from the
        running operations. Exceptions of the block that are not mentioned below are raised unchanged.

        :raises SplitEndedError: when ``fence`` was closed before or during the block, or another worker has taken over
            the split.
        :raises WorldError: when Spark is not running on this worker.
        """
        try:
            self._driver()
            if fence.is_closed:
                raise FencedError
            yield
        except FencedError as error:
            self._driver()
            raise SplitEndedError(
                f"The split of connector {connector} was ended on this worker; it is tried again"
            ) from error
        except SupersededError as error:
            raise SplitEndedError(f"{error}; the split of connector {connector} is tried again") from error
        finally:
            with self._lock:
                del self._fences[fence]

    def _finisher(
        self,
        fence: Fence,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        parts: Sequence[str],
    ) -> ResplitFinisher:
        """The object that performs the steps of a re-split of ``connector``. ``config``: the newest config of the
        connector that this worker has. ``parts``: the source partitions with this config."""
        return ResplitFinisher(
            connector=connector_folder(self._config.checkpoint_location, connector, incarnation),
            position_store=configured_source(resolved(config), self._config.kafka).plugin.position_store,
            run_batch=partial(self._run_batch, fence, connector, config, frozenset(parts)),
            fence=fence,
            remove_commit_markers=partial(self._remove_commit_markers, connector),
        )

    def _generation_zero_manifest(self, tasks: Sequence[Mapping[str, str]]) -> Manifest:
        """The manifest of generation 0: the checkpoints of a version of Coterie without checkpoint generations.

        ``tasks``: the configs of all tasks of the connector, which contain no checkpoint generation. The source
        partitions of each task are those of a split now into as many tasks.

        :raises ConfigError: when a value in the first task's config is not valid.
        :raises WorldError: when the source cannot be reached.
        """
        source = configured_source(resolved(tasks[0]), self._config.kafka, "task.class")
        function = source.plugin.split_function
        parts = source.plugin.split(source.plugin.parts(source.config), len(tasks))
        return Manifest(
            generation=GenerationId(number=0, id="flat"),
            split=Split(
                function=SplitFunction.PATH_HASH_V0 if function is SplitFunction.PATH_HASH_V1 else function,
                tasks=tuple(tuple(one) for one in parts),
            ),
            config={key: value for key, value in tasks[0].items() if not key.startswith("task.")},
            inferred={},
            positions={},
            positions_of_absent={},
        )

    def _sink_identity(self, config: Mapping[str, str]) -> Mapping[str, str | None]:
        """:func:`sink_identity` of a connector's config."""
        return sink_identity(resolved(config), self._config.kafka)

    def _remove_commit_markers(self, connector: ConnectorName, manifest: Manifest, lineages: Mapping[int, str]) -> bool:
        """Remove the data that the sink and the dead letter queue of the old checkpoint generation ``manifest`` keep to
        reject second copies of its batches. ``lineages``: the generation's checkpoint lineages by task number. Returns
        False, after logging the error, when that failed; see :data:`RemoveCommitMarkers`."""
        retired = [TaskLineage(task=ConnectorTaskId(connector, task), lineage=one) for task, one in lineages.items()]
        try:
            sink = configured_sink(resolved(manifest.config), self._config.kafka)
            sink.plugin.remove_commit_markers(sink.config, retired)
            queue.remove_commit_markers(sink.config.config, retired)
        except (CoterieError, OSError) as error:
            log.warning(
                "Connector %s: the old checkpoint generation %s is kept until its data in the sink can be removed: %s",
                connector,
                manifest.generation,
                message_of(error),
            )
            return False
        return True

    def _run_batch(
        self,
        fence: Fence,
        connector: ConnectorName,
        config: Mapping[str, str],
        parts: frozenset[str],
        manifest: Manifest,
        task: int,
        held: HeldCheckpoint,
    ) -> None:
        """Run the batch in flight of ``held``, the checkpoint of the task ``task`` of the closed checkpoint generation
        ``manifest``: with the newest ``config``, but with the source partitions and the sink of that generation; see
        :mod:`coterie.spark.in_flight`. ``parts``: the source partitions with the newest config.

        :raises SupersededError: when another worker has taken over the checkpoint.
        :raises FencedError: when ``fence`` was closed.
        :raises UnreachableError: when a server that the batch needs cannot be reached.
        :raises WorldError: when the batch fails for another reason or was not committed, or Spark is not running.
        """
        task_id = ConnectorTaskId(connector, task)
        log.info(
            "%s: running batch %s of the closed checkpoint generation %s",
            task_id,
            held.batch_in_flight,
            manifest.generation,
        )
        batch = f"Connector {connector} cannot be split again: batch {held.batch_in_flight} of task {task} must be"
        spark = self._driver().spark.newSession()
        try:
            to_run = config_for_batch_in_flight(resolved(config), manifest, parts, self._config.kafka)
            pipeline = Pipeline.of(task_configs(connector, to_run, manifest)[task], self._config.kafka)
            query = TaskQuery(spark, task_id, pipeline, held, fence)
            query.run_batch_in_flight()
        except FencedError:
            raise
        except (PySparkException, Py4JError, CoterieError, OSError) as error:
            if is_taken_over(held.path):
                raise SupersededError(
                    f"The checkpoint {held.path} was taken over by another worker, which also splits the connector"
                ) from error
            if isinstance(error, UnreachableError):
                sentence = f"{batch} finished first, and a server cannot be reached: {first_line(error)}"
                raise UnreachableError(sentence) from error
            raise WorldError(
                f"{batch} finished first, and this batch fails. Put a config with which the batch succeeds, or delete "
                f"the connector and create it again: {first_line(error)}"
            ) from error
        if batch_in_flight(held.path) is not None:
            if is_taken_over(held.path):
                raise SupersededError(
                    f"The checkpoint {held.path} was taken over by another worker, which also splits the connector"
                )
            raise WorldError(f"Connector {connector}: batch {held.batch_in_flight} of task {task} was not committed")
