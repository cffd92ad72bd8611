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

from coterie.herder.seams import PartsChanged, SplitEndedError
from coterie.nouns.errors import ConfigError, CoterieError, UnreachableError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records import queue
from coterie.spark.checkpoint import HeldCheckpoint, batch_in_flight, is_taken
from coterie.spark.events import Events
from coterie.spark.failures import sentence_of
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.layout import GenerationId, connector_folder
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.owner import Owner, Wanted, newest_stated
from coterie.spark.generations.resplit import Finisher, OvertakenError
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.in_flight import config_in_flight
from coterie.spark.patience import PARTS_AGE
from coterie.spark.pipeline import GENERATION, Pipeline, resolved, split_of, task_configs
from coterie.spark.plugins import SourceEnd, sink_end, source_end, written_to
from coterie.spark.query import TaskQuery
from coterie.spark.seams import TaskLineage
from coterie.spark.session import Session
from coterie.spark.settings import SparkConfig
from coterie.spark.transforms import first_sentence
from coterie.spark.validation import common, sink_errors, source_errors, split_errors

log = logging.getLogger(__name__)

RELEASE_GRACE_MS = 15_000
"""Time that a re-split waits until the tasks of a closed checkpoint generation have stopped: their own grace, plus the
time until their workers detect that the generation is closed."""
LOOK_EVERY_S = 0.5
"""Interval at which the splitter checks whether a source's partitions have to be listed."""
LOOK_PATIENCE_S = 2
"""Time that the list of one source's partitions may delay the lists of the next sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The source of a connector that this worker has split; its partitions are listed again after ``max_age_s``."""

    source: SourceEnd
    parts: Sequence[str]
    """The source partitions at the time of the split."""
    max_age_s: float
    asked_at: float
    """The monotonic second in which the source partitions were last listed."""

    @property
    def due(self) -> float:
        """The monotonic second in which the source partitions have to be listed again."""
        return self.asked_at + self.max_age_s


class Splitter:
    """Splits connectors on the session that ``session`` returns. All methods block: they are called on threads."""

    def __init__(self, config: SparkConfig, events: Events, session: Callable[[], Session]) -> None:
        self._config = config
        self._events = events
        self._session = session
        self._lock = threading.Lock()
        self._fences: dict[Fence, ConnectorName] = {}
        """The fences of the running :meth:`split` and :meth:`finish` calls."""
        self._watched: dict[ConnectorName, Watched] = {}

    def begin(self, connector: ConnectorName) -> Fence:
        """The fence for the next :meth:`split` or :meth:`finish` of ``connector``. :meth:`forget` shuts the fence."""
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
        checkpointed: Sequence[Mapping[str, str]],
        *,
        keeps_split: bool = False,
    ) -> list[Mapping[str, str]]:
        """See :meth:`coterie.herder.seams.TaskRuntime.split`."""
        with self._ended(fence, connector):
            source = source_end(resolved(config), self._config.kafka)
            if errors := source_errors(source, checkpointed) | sink_errors(source, checkpointed):
                raise ConfigError(errors)
            asked_at, max_age_ms = time.monotonic(), common().read(config, PARTS_AGE.name, int)
            parts = source.plugin.parts(source.config)
            split = split_of(source, parts)
            if source.plugin.has_fixed_split and (errors := split_errors(config, len(split.tasks), checkpointed)):
                raise ConfigError(errors)
            is_known = any(GENERATION in task for task in checkpointed)
            wanted = Wanted(
                config=config,
                split=split,
                sink=self._sink,
                starts=partial(source.plugin.starts, source.config),
                open_keys=frozenset(source.plugin.open_keys(source.config)),
                infer=lambda known: source.plugin.infer(self._session().spark, source.config.filled(known)),
                is_fixed=source.plugin.has_fixed_split,
                is_known=is_known,
                flat=self._flat(checkpointed) if checkpointed and not is_known else None,
                keeps_split=keeps_split,
            )
            finisher = self._finisher(fence, connector, incarnation, config, parts)
            manifest = Owner(finisher, grace_ms=RELEASE_GRACE_MS).settle(wanted)
            with self._lock:
                if not fence.closed:
                    self._watched[connector] = Watched(
                        source=source, parts=parts, max_age_s=max_age_ms / 1000, asked_at=asked_at
                    )
            return task_configs(connector, config, manifest)

    def finish(
        self, fence: Fence, connector: ConnectorName, incarnation: Incarnation
    ) -> list[Mapping[str, str]] | None:
        """See :meth:`coterie.herder.seams.TaskRuntime.finish`."""
        with self._ended(fence, connector):
            folder = connector_folder(self._config.checkpoint_location, connector, incarnation)
            if (stated := newest_stated(folder)) is None:
                return None
            parts = [part for task in stated.split.tasks for part in task]
            finisher = self._finisher(fence, connector, incarnation, stated.config, parts)
            manifest = Owner(finisher, grace_ms=RELEASE_GRACE_MS).finish_after_silence()
            # Use the checkpoint generation's config and not the connector's: if the generation does not match the
            # connector's config, the worker that has the connector creates another one.
            return None if manifest is None else task_configs(connector, manifest.config, manifest)

    def forget(self, connector: ConnectorName) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.forget`."""
        with self._lock:
            self._watched.pop(connector, None)
            for fence, name in self._fences.items():
                if name == connector:
                    fence.shut()

    def watch_parts(self, closing: threading.Event) -> None:
        """Report the connectors whose source partitions have changed, until ``closing`` is set. Runs on a separate
        thread.

        After a report the connector is not checked before its next split. A source that does not respond delays the
        other sources by :data:`LOOK_PATIENCE_S` at most, and is not checked again before it has responded.
        """
        looks: dict[ConnectorName, threading.Thread] = {}
        while not closing.wait(LOOK_EVERY_S):
            looks = {connector: look for connector, look in looks.items() if look.is_alive()}
            now = time.monotonic()
            with self._lock:
                due = sorted(name for name, one in self._watched.items() if one.due <= now and name not in looks)
            for connector in due:
                look = threading.Thread(target=self._look, args=(connector,), name="coterie-look", daemon=True)
                look.start()
                look.join(LOOK_PATIENCE_S)
                looks[connector] = look
                if closing.is_set():
                    return

    def _look(self, connector: ConnectorName) -> None:
        """Report the connector if its source partitions have changed since this worker split it."""
        with self._lock:
            before = self._watched.get(connector)
        if before is None:
            return
        now = replace(before, asked_at=time.monotonic())
        has_changed = False
        try:
            has_changed = sorted(before.source.plugin.parts(before.source.config)) != sorted(before.parts)
        except Exception as error:  # noqa: BLE001 - a source may raise anything; the tasks report their own failures
            log.warning("Connector %s: listing the source's partitions failed: %s", connector, first_sentence(error))
        with self._lock:
            if self._watched.get(connector) is not before:
                return
            if not has_changed:
                self._watched[connector] = now
                return
            del self._watched[connector]
        self._events.put(PartsChanged(connector=connector))

    def shut(self) -> None:
        """Prevent that a running split commits a checkpoint generation or a batch in flight."""
        with self._lock:
            for fence in self._fences:
                fence.shut()

    @contextmanager
    def _ended(self, fence: Fence, connector: ConnectorName) -> Iterator[None]:
        """Run one split or finish under ``fence``, and remove the fence afterwards.

        :raises SplitEndedError: when the fence was shut, or another worker has taken over the split.
        :raises WorldError: when Spark is not running on this worker.
        """
        try:
            self._session()
            if fence.closed:
                raise FencedError
            yield
        except FencedError as error:
            self._session()
            raise SplitEndedError(f"The split of connector {connector} was ended here; it is tried again") from error
        except OvertakenError as error:
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
    ) -> Finisher:
        """``config`` is the newest config that this worker has, and ``parts`` are its source partitions."""
        return Finisher(
            connector=connector_folder(self._config.checkpoint_location, connector, incarnation),
            store=source_end(resolved(config), self._config.kafka).plugin.store,
            run_batch=partial(self._run_batch, fence, connector, config, frozenset(parts)),
            fence=fence,
            retire_lineages=partial(self._retire_lineages, connector),
        )

    def _flat(self, tasks: Sequence[Mapping[str, str]]) -> Manifest:
        """The manifest of generation 0, for tasks whose configs name no checkpoint generation: a version of Coterie
        without checkpoint generations has started them."""
        source = source_end(resolved(tasks[0]), self._config.kafka, "task.class")
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
            parked={},
        )

    def _sink(self, config: Mapping[str, str]) -> Mapping[str, str | None]:
        return written_to(resolved(config), self._config.kafka)

    def _retire_lineages(self, connector: ConnectorName, manifest: Manifest, lineages: Mapping[int, str]) -> bool:
        """Remove the data that the sinks of a checkpoint generation keep for its lineages. Returns False when that
        failed; see :data:`RetireLineages`."""
        retired = [TaskLineage(task=ConnectorTaskId(connector, task), lineage=one) for task, one in lineages.items()]
        try:
            sink = sink_end(resolved(manifest.config), self._config.kafka)
            sink.plugin.retire(sink.config, retired)
            queue.retire(sink.config.config, retired)
        except (CoterieError, OSError) as error:
            log.warning(
                "Connector %s: checkpoint generation %s cannot be removed yet: %s",
                connector,
                manifest.generation,
                sentence_of(error),
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
        """Run the batch in flight of a closed checkpoint generation with the newest ``config``, but with the source
        partitions and the sink of its own generation; see :mod:`coterie.spark.in_flight`.

        :raises OvertakenError: when another worker has taken over the checkpoint.
        :raises FencedError: when the fence was shut.
        :raises UnreachableError: when a server that the batch needs cannot be reached.
        :raises WorldError: when the batch fails.
        """
        task_id = ConnectorTaskId(connector, task)
        log.info(
            "%s: running batch %s of the closed checkpoint generation %s",
            task_id,
            held.batch_in_flight,
            manifest.generation,
        )
        batch = f"Connector {connector} cannot be split again: batch {held.batch_in_flight} of task {task} must be"
        spark = self._session().spark.newSession()
        try:
            to_run = config_in_flight(resolved(config), manifest, parts, self._config.kafka)
            pipeline = Pipeline.of(task_configs(connector, to_run, manifest)[task], self._config.kafka)
            query = TaskQuery(spark, task_id, pipeline, held, fence)
            query.finish_batch()
        except FencedError:
            raise
        except (PySparkException, Py4JError, CoterieError, OSError) as error:
            if is_taken(held.path):
                raise OvertakenError(f"{held.path} was taken over by a re-split of another worker") from error
            if isinstance(error, UnreachableError):
                sentence = f"{batch} finished first, and a server cannot be reached: {first_sentence(error)}"
                raise UnreachableError(sentence) from error
            raise WorldError(
                f"{batch} finished first, and it fails. Put a config with which it succeeds, or delete the connector "
                f"and create it again: {first_sentence(error)}"
            ) from error
        if batch_in_flight(held.path) is not None:
            if is_taken(held.path):
                raise OvertakenError(f"{held.path} was taken over by a re-split of another worker")
            raise WorldError(f"Connector {connector}: batch {held.batch_in_flight} of task {task} was not committed")
