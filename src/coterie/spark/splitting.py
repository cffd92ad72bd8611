"""Splits connectors: makes a connector's newest checkpoint generation match its config and returns the task configs."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.herder.seams import SourcePartsChanged, SplitOrOffsetChangeAbortedError, SplitResult
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange
from coterie.nouns.errors import ConfigError, CoterieError, UnreachableError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records import queue
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.checkpoint import HeldCheckpoint, find_batch_id_in_flight, is_checkpoint_taken_over_or_absent
from coterie.spark.connector_keys import common_connector_definition
from coterie.spark.events import EventQueue
from coterie.spark.failures import error_message, may_be_lost_jvm_error
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.layout import GenerationId, connector_folder
from coterie.spark.generations.manifest import Manifest, PositionChange
from coterie.spark.generations.reached import read_reached_positions
from coterie.spark.generations.resplit import ResplitFinisher, SupersededError
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import PositionStore, UnmovablePositionStore
from coterie.spark.generations.updater import (
    RESPLIT_POSTPONEMENT,
    GenerationRequest,
    GenerationUpdater,
    PositionChangeRequest,
    matches_request,
    read_newest_plan_or_manifest,
)
from coterie.spark.in_flight import config_for_batch_in_flight
from coterie.spark.pipeline import Pipeline, split_source, task_configs, use_digests_in_split_if_references
from coterie.spark.plugin_calls import PluginCall, PluginCalls, plugin_stage, wrap_in_plugin_stage
from coterie.spark.plugins import ConfiguredSource, configured_sink, configured_source, sink_identity, source_class
from coterie.spark.positions import Positions
from coterie.spark.query import TakenOverInSinkError, TaskQuery
from coterie.spark.redaction import new_redacting_session
from coterie.spark.seams import HasConsumerGroup, HasRecreatablePartitions, Source, TaskCheckpointLineage
from coterie.spark.session import SparkDriver
from coterie.spark.settings import SparkConfig
from coterie.spark.task_timeouts import METADATA_MAX_AGE_KEY
from coterie.spark.transforms import first_message_line
from coterie.spark.validation import (
    GENERATION_KEY,
    sink_change_errors_if_source_unmovable,
    source_class_or_format_change_errors,
    task_count_change_errors,
)

log = logging.getLogger(__name__)

TASKS_STOP_TIMEOUT_MS = 15_000
"""How long, in ms, a re-split waits, from the closing of a checkpoint generation, until its tasks have stopped. Then
the re-split continues, also if some of them still run. The time consists of the tasks' own grace and the time until
their workers detect that the generation is closed."""
POLL_INTERVAL_S = 0.5
"""Interval at which :meth:`Splitter.watch_source_partitions` checks whether a source's partitions have to be listed."""
JVM_EXIT_TIMEOUT_S = 5
"""How long an operation that has lost its connection to the JVM waits until the end of the JVM is noticed."""
PARTITION_CHECK_CALLS = CallQueueSpec(name="partition check", concurrent_calls_max=4)
"""The calls that list the partitions of watched sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSource:
    """The source of a connector that this worker has split, with the source partitions at the time of that split. They
    are listed again at intervals, to detect new and removed ones."""

    connector_config: Mapping[str, str] = field(repr=False)
    """The connector's config, with unresolved references: their values may change."""
    source_partitions: Sequence[str]
    """The source partitions at the time of the split."""
    check_interval_s: float
    """The interval of the checks in seconds: ``metadata.max.age.ms`` of the connector."""
    last_checked_at_s: float
    """The monotonic second in which the source partitions were last listed."""

    @property
    def next_check_at_s(self) -> float:
        """The monotonic second from which the source partitions have to be listed again."""
        return self.last_checked_at_s + self.check_interval_s


class Splitter:
    """Splits connectors on the Spark that ``running_driver`` returns; ``running_driver`` raises WorldError when Spark
    is not running.

    A split divides a connector's input between its tasks. A re-split is a split with new input or another sink: it
    closes the checkpoint generation, finishes its batches in flight and creates the next generation. Split methods may
    block: they are called on threads.
    """

    def __init__(
        self,
        config: SparkConfig,
        events: EventQueue,
        running_driver: Callable[[], SparkDriver],
        calls: PluginCalls,
    ) -> None:
        self._config = config
        self._events = events
        self._running_driver = running_driver
        self._calls = calls
        self._lock = threading.Lock()
        self._connector_by_fence: dict[Fence, ConnectorName] = {}
        """The fences of the running calls for which :meth:`add_fence` was called, each with its connector."""
        self._watched_sources: dict[ConnectorName, WatchedSource] = {}
        """The sources whose partitions :meth:`watch_source_partitions` lists, by connector."""

    def add_fence(self, connector: ConnectorName) -> Fence:
        """A new fence, to be passed to one call of :meth:`split`, :meth:`ensure_open_checkpoint_generation` or
        :meth:`change_offsets` of ``connector``. :meth:`stop_connector` and :meth:`close_fences_nowait` close the fence,
        also before that call begins."""
        fence = Fence()
        with self._lock:
            self._connector_by_fence[fence] = connector
        return fence

    def drop_fence(self, fence: Fence) -> None:
        """Forget ``fence``, which :meth:`add_fence` has returned and whose call has ended or will never begin. Does
        nothing if it is forgotten already."""
        with self._lock:
            self._connector_by_fence.pop(fence, None)

    def split(
        self,
        fence: Fence,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        """Split the connector into task configs, as :meth:`coterie.herder.seams.TaskRuntime.split` describes.
        ``fence``: a new fence from :meth:`add_fence`. The source's partitions are watched afterwards
        (:meth:`watch_source_partitions`)."""
        with self._fenced_operation(fence, connector):
            with plugin_stage("validate"):
                resolved_config = self._resolve_references(config)
                source = configured_source(resolved_config, self._config.worker_kafka_properties)
                resolved_task_configs = [
                    self._config.config_providers.resolve_where_possible(task) for task in configs_of_checkpointed_tasks
                ]
                if errors := (
                    source_class_or_format_change_errors(source, resolved_task_configs)
                    | sink_change_errors_if_source_unmovable(source, resolved_task_configs)
                ):
                    raise ConfigError(errors)
            listed_at_s, max_age_ms = (
                time.monotonic(),
                common_connector_definition().required_value(resolved_config, METADATA_MAX_AGE_KEY.name, int),
            )
            with plugin_stage("list_source_partitions"):
                source_partitions = source.plugin.list_source_partitions(source.config)
            with plugin_stage("split"):
                split = split_source(source, source_partitions)
                keys_to_infer = frozenset(source.plugin.keys_to_infer(source.config))
            if source.plugin.has_fixed_split and (
                errors := task_count_change_errors(
                    resolved_config, len(split.partitions_by_task), resolved_task_configs
                )
            ):
                raise ConfigError(errors)
            has_generation = any(GENERATION_KEY in task for task in configs_of_checkpointed_tasks)
            request = GenerationRequest(
                config=config,
                split=use_digests_in_split_if_references(split, source, config),
                identify_sink=wrap_in_plugin_stage("definition", self._sink_identity),
                find_initial_positions=wrap_in_plugin_stage(
                    "initial_positions", partial(source.plugin.initial_positions, source.config)
                ),
                keys_to_infer=keys_to_infer,
                infer_values=wrap_in_plugin_stage(
                    "infer_values",
                    lambda known_values: source.plugin.infer_values(
                        new_redacting_session(self._running_driver().spark, config, resolved_config),
                        source.config.with_defaults(known_values),
                    ),
                ),
                is_split_fixed=source.plugin.has_fixed_split,
                has_task_configs_with_generation=has_generation,
                make_legacy_layout_manifest=partial(self._make_legacy_layout_manifest, configs_of_checkpointed_tasks)
                if configs_of_checkpointed_tasks and not has_generation
                else None,
                keeps_source_parts=keeps_source_parts,
            )
            resplit_finisher = self._make_resplit_finisher(fence, connector, incarnation, config, source_partitions)
            updater = GenerationUpdater(resplit_finisher, tasks_stop_timeout_ms=TASKS_STOP_TIMEOUT_MS)
            try:
                manifest = updater.update(request)
            except OSError as error:
                # The shared folder may be away for a while, and no row depends on when the connector is split.
                raise UnreachableError(
                    f"The checkpoints in {resplit_finisher.connector_path} cannot be read or written: {error}"
                ) from error
            with self._lock:
                if not fence.is_closed:
                    self._watched_sources[connector] = WatchedSource(
                        connector_config=config,
                        source_partitions=source_partitions,
                        check_interval_s=max_age_ms / 1000,
                        last_checked_at_s=listed_at_s,
                    )
            with plugin_stage("definition"):
                return SplitResult(
                    task_configs=task_configs(connector, config, manifest, resolved_config),
                    kept_source_parts_reason=None if matches_request(manifest, request) else RESPLIT_POSTPONEMENT,
                )

    def ensure_open_checkpoint_generation(
        self, fence: Fence, connector: ConnectorName, incarnation: Incarnation
    ) -> list[Mapping[str, str]] | None:
        """Finish the re-split of the connector's closed checkpoint generation unless another worker performs it, as
        :meth:`coterie.herder.seams.TaskRuntime.ensure_open_checkpoint_generation` describes. ``fence``: a new fence
        from :meth:`add_fence`.

        Returns the configs of the tasks of the newest generation, also if no generation was closed. None when there is
        no generation, when no task can start in the newest one, or when another worker performs the re-split.
        """
        with self._fenced_operation(fence, connector):
            folder_of_connector = connector_folder(self._config.checkpoint_location, connector, incarnation)
            if (newest_document := read_newest_plan_or_manifest(folder_of_connector)) is None:
                return None
            resplit_finisher = self._make_resplit_finisher(
                fence, connector, incarnation, newest_document.config, newest_document.split.source_partitions
            )
            manifest = GenerationUpdater(
                resplit_finisher, tasks_stop_timeout_ms=TASKS_STOP_TIMEOUT_MS
            ).finish_abandoned_resplit_and_read_newest()
            # Use the checkpoint generation's config and not the connector's: if the generation does not match the
            # connector's config, the worker that has the connector creates another one.
            if manifest is None:
                return None
            with plugin_stage("definition"):
                return task_configs(connector, manifest.config, manifest, self._resolve_references(manifest.config))

    def read_offsets(
        self, connector: ConnectorName, incarnation: Incarnation, config: Mapping[str, str]
    ) -> Sequence[ConnectorOffset]:
        """How far the committed batches of the connector's tasks have read, as
        :meth:`coterie.herder.seams.TaskRuntime.read_offsets` describes. Empty for a source whose positions cannot be
        moved to another checkpoint."""
        plugin = configured_source(self._resolve_references(config), self._config.worker_kafka_properties).plugin
        if isinstance(plugin.position_store, UnmovablePositionStore):
            return ()
        folder_of_connector = connector_folder(self._config.checkpoint_location, connector, incarnation)
        return plugin.to_offsets(self._read_reached_positions(folder_of_connector, plugin.position_store, config))

    def change_offsets(
        self,
        fence: Fence,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        """Change the connector's offsets, as :meth:`coterie.herder.seams.TaskRuntime.change_offsets` describes: create
        a checkpoint generation with the changed positions. Then replace the offsets of the connector's consumer group,
        if the source has one; a failure to do so is only logged. ``fence``: a new fence from :meth:`add_fence`."""
        with self._fenced_operation(fence, connector, mentions_retry_by_herder=False):
            source = self._configured_source({**config, "name": connector})
            # An unmovable source refuses every change, also one without offsets.
            is_movable = not isinstance(source.plugin.position_store, UnmovablePositionStore)
            needs_source = bool(change.offsets) or not is_movable
            with plugin_stage("parse_offsets"):
                positions = source.plugin.parse_offsets(source.config, change.offsets) if needs_source else {}
            folder_of_connector = connector_folder(self._config.checkpoint_location, connector, incarnation)
            newest_document = read_newest_plan_or_manifest(folder_of_connector)
            source_partitions = (
                frozenset[str]()
                if newest_document is None or self._is_source_class_surely_changed(newest_document.config, config)
                else newest_document.split.source_partitions
            )
            if positions and isinstance(source.plugin, HasRecreatablePartitions):
                # Otherwise the positions of deleted input would still be shown for the changed partitions.
                known = self._read_reached_positions(folder_of_connector, source.plugin.position_store, config)
                with plugin_stage("former_partitions"):
                    former = source.plugin.former_partitions(positions, source_partitions | known.keys())
                positions = {**positions, **dict.fromkeys(former)}
            resplit_finisher = self._make_resplit_finisher(fence, connector, incarnation, config, source_partitions)
            GenerationUpdater(resplit_finisher, tasks_stop_timeout_ms=TASKS_STOP_TIMEOUT_MS).change_positions(
                PositionChangeRequest(
                    change=PositionChange(positions=positions, removes_others=change.removes_others),
                    config=config,
                    split_function=source.plugin.split_function,
                    has_task_configs_with_generation=any(
                        GENERATION_KEY in task for task in configs_of_checkpointed_tasks
                    ),
                )
            )
            if isinstance(source.plugin, HasConsumerGroup):
                try:
                    with plugin_stage("replace_group_offsets"):
                        source.plugin.replace_group_offsets(
                            source.config,
                            self._read_reached_positions(folder_of_connector, source.plugin.position_store, config),
                        )
                except CoterieError as error:
                    log.warning(
                        "Connector %s: its offsets were changed, but those of its consumer group, which only Kafka's "
                        "tools read, could not be changed, and this is not tried again: %s",
                        connector,
                        first_message_line(error),
                    )

    def stop_connector(self, connector: ConnectorName) -> None:
        """End the running calls of :meth:`split`, :meth:`ensure_open_checkpoint_generation` and :meth:`change_offsets`
        of ``connector``, and stop watching its source partitions, as
        :meth:`coterie.herder.seams.TaskRuntime.stop_connector` describes."""
        with self._lock:
            self._watched_sources.pop(connector, None)
            for fence, name in self._connector_by_fence.items():
                if name == connector:
                    fence.close_nowait()

    def watch_source_partitions(self, closing: threading.Event) -> None:
        """List the partitions of the watched sources at their intervals, and report each connector whose source
        partitions differ from those at its split (:class:`SourcePartsChanged`), until ``closing`` is set. Runs on a
        separate thread.

        After a report the connector is not checked before its next split. A source that does not respond is not checked
        again before it has responded.
        """
        check_calls: dict[ConnectorName, PluginCall] = {}
        while not closing.wait(POLL_INTERVAL_S):
            check_calls = {connector: call for connector, call in check_calls.items() if not call.has_function_ended}
            now_s = time.monotonic()
            with self._lock:
                due_connectors = sorted(
                    name
                    for name, watched in self._watched_sources.items()
                    if watched.next_check_at_s <= now_s and name not in check_calls
                )
            for connector in due_connectors:
                check_calls[connector] = self._calls.submit(
                    PARTITION_CHECK_CALLS,
                    f"connector {connector}",
                    partial(self._report_if_partitions_changed, connector),
                    stage="list_source_partitions",
                )

    def _report_if_partitions_changed(self, connector: ConnectorName) -> None:
        """Report ``connector`` if its source partitions have changed since this worker split it. Does nothing if the
        source is not watched, also when the watch ends during the check; a source that cannot be listed is logged and
        listed again later."""
        with self._lock:
            watched_before = self._watched_sources.get(connector)
        if watched_before is None:
            return
        watched_after = replace(watched_before, last_checked_at_s=time.monotonic())
        has_changed, failure = False, None
        try:
            source = configured_source(
                self._resolve_references(watched_before.connector_config), self._config.worker_kafka_properties
            )
            has_changed = sorted(source.plugin.list_source_partitions(source.config)) != sorted(
                watched_before.source_partitions
            )
        except Exception as error:  # noqa: BLE001 - a source may raise anything; the tasks report their own failures
            failure = error
        with self._lock:
            if self._watched_sources.get(connector) is not watched_before:
                return
            if has_changed:
                del self._watched_sources[connector]
            else:
                self._watched_sources[connector] = watched_after
        if has_changed:
            self._events.put(SourcePartsChanged(connector=connector))
        if failure is not None:
            log.warning(
                "Connector %s: listing the source's partitions failed, so new and removed partitions are not found; "
                "they are listed again in %d ms: %s",
                connector,
                watched_after.check_interval_s * 1000,
                first_message_line(failure),
            )

    def close_fences_nowait(self) -> None:
        """Close the fences of all calls of :meth:`split`, :meth:`ensure_open_checkpoint_generation` and
        :meth:`change_offsets` that are running or about to begin: they commit no checkpoint generation and no batch in
        flight any more, except in a commit that has already begun. Does not wait."""
        with self._lock:
            for fence in self._connector_by_fence:
                fence.close_nowait()

    @contextmanager
    def _fenced_operation(
        self, fence: Fence, connector: ConnectorName, *, mentions_retry_by_herder: bool = True
    ) -> Iterator[None]:
        """Context manager for one operation on ``connector``: a split, the end of a re-split, or a change of offsets.
        When the block ends, ``fence`` is removed from the fences of the running calls. Exceptions of the block that are
        not mentioned below are raised unchanged. ``mentions_retry_by_herder`` only selects the text of
        SplitOrOffsetChangeAbortedError: True if the herder tries the operation again, as it does with a split; False if
        the user must request it again.

        :raises SplitOrOffsetChangeAbortedError: when ``fence`` was closed before or during the block; when another
            worker has taken over the re-split; when a later start of a task has taken over in the sink while the
            operation ran the task's batch in flight; or when Spark is not running on this worker, or its JVM has ended
            during the block.
        """
        ended_message, without_spark_message = (
            (
                f"The split of connector {connector} was ended on this worker; it is tried again",
                f"The split of connector {connector} is tried again by a worker whose Spark runs: another one, or this "
                "one after its restart",
            )
            if mentions_retry_by_herder
            else (
                f"The change of the offsets of connector {connector} was ended on this worker; request it again",
                f"The change of the offsets of connector {connector} was not made; request it again from a worker "
                "whose Spark runs",
            )
        )
        driver: SparkDriver | None = None
        try:
            driver = self._running_driver()
            if fence.is_closed:
                raise FencedError
            yield
        except Exception as error:
            if driver is not None and may_be_lost_jvm_error(error):
                driver.await_exit_report_or_timeout(timeout_s=JVM_EXIT_TIMEOUT_S)
            try:
                self._running_driver()
            except WorldError as not_running:
                # This is the cause, whatever exception the block has raised: it does not show an error of the config.
                raise SplitOrOffsetChangeAbortedError(f"{not_running}. {without_spark_message}") from error
            match error:
                case FencedError():
                    raise SplitOrOffsetChangeAbortedError(ended_message) from error
                case SupersededError() | TakenOverInSinkError():
                    raise SplitOrOffsetChangeAbortedError(f"{error}. {ended_message}") from error
                case _:
                    raise
        finally:
            self.drop_fence(fence)

    def _make_resplit_finisher(
        self,
        fence: Fence,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        source_partitions: Iterable[str],
    ) -> ResplitFinisher:
        """The object that performs the steps of a re-split of ``connector``. ``config``: the newest config of the
        connector that this worker has. ``source_partitions``: the source partitions with this config.

        :raises ConfigError: when the source of ``config`` is not valid.
        """
        self._configured_source(config)  # Raises ConfigError: the next generation needs the source of this config.

        def find_position_store(plan_config: Mapping[str, str]) -> PositionStore:
            """The position store of the class of source that ``plan_config``, the config of a plan, names; each of its
            calls has a time limit (:data:`FindPositionStore`).

            :raises SplitOrOffsetChangeAbortedError: when this worker does not know the class.
            """
            return _time_limited_store(self._source_class_or_abort_split(connector, plan_config).position_store)

        return ResplitFinisher(
            connector_path=connector_folder(self._config.checkpoint_location, connector, incarnation),
            find_position_store=find_position_store,
            run_batch_in_flight=partial(
                self._run_batch_in_flight, fence, connector, config, frozenset(source_partitions)
            ),
            fence=fence,
            remove_deduplication_data=partial(self._try_remove_deduplication_data, connector),
            is_source_class_changed=self._is_source_class_surely_changed,
        )

    def _read_reached_positions(
        self, folder_of_connector: Path, position_store: PositionStore, config: Mapping[str, str]
    ) -> Positions:
        """The positions of :func:`read_reached_positions` in ``folder_of_connector``, for the class of source in the
        connector's ``config``, whose store is ``position_store``."""
        return read_reached_positions(
            folder_of_connector,
            position_store,
            lambda former_config: not self._is_source_class_surely_changed(former_config, config),
        )

    def _is_source_class_surely_changed(
        self, former_config: Mapping[str, str], newer_config: Mapping[str, str]
    ) -> bool:
        """Whether a former and a newer config of a connector name two classes of sources
        (:data:`IsSourceClassChanged`). False if one of the classes is not known on this worker."""
        try:
            return self._source_class_or_raise_config_error(
                former_config
            ) is not self._source_class_or_raise_config_error(newer_config)
        except ConfigError:
            return False  # The class may have got another name.

    def _source_class_or_abort_split(
        self, connector: ConnectorName, generation_config: Mapping[str, str]
    ) -> type[Source]:
        """The class of source that ``generation_config``, the config of a checkpoint generation of ``connector``,
        names.

        :raises SplitOrOffsetChangeAbortedError: when this worker does not know the class: another class cannot read its
            positions.
        """
        try:
            return self._source_class_or_raise_config_error(generation_config)
        except ConfigError as error:
            names = [generation_config[key] for key in ("source.class", "connector.class") if key in generation_config]
            raise SplitOrOffsetChangeAbortedError(
                f"A checkpoint generation of connector {connector} was made for the source {' or '.join(names)}, which "
                "this worker does not have, so it cannot use the positions of that generation. Install the plug-in on "
                "this worker and restart the worker, or try again on a worker that has the plug-in"
            ) from error

    def _source_class_or_raise_config_error(self, config: Mapping[str, str]) -> type[Source]:
        """The class of source that a connector's config names.

        :raises ConfigError: when the class is missing or not known on this worker.
        """
        return source_class(
            self._config.config_providers.resolve_where_possible(
                {key: config[key] for key in ("connector.class", "source.class") if key in config}
            )
        )

    def _configured_source(self, config: Mapping[str, str], class_key: str = "connector.class") -> ConfiguredSource:
        """The source of a connector or a task with this config (:func:`configured_source`). The references in
        ``config`` are resolved here; the whole call counts as one plug-in call, which has a time limit.

        :raises ConfigError: when the source is missing or unknown, or a reference cannot be resolved.
        """
        with plugin_stage("definition"):
            return configured_source(self._resolve_references(config), self._config.worker_kafka_properties, class_key)

    def _resolve_references(self, config: Mapping[str, str]) -> Mapping[str, str]:
        """``config`` with resolved references (:meth:`coterie.config.providers.ConfigProviders.resolve`).

        :raises ConfigError: when a reference cannot be resolved.
        :raises SecretNotHiddenError: when a value cannot be hidden everywhere.
        """
        return self._config.config_providers.resolve(config)

    def _make_legacy_layout_manifest(self, task_configs_: Sequence[Mapping[str, str]]) -> Manifest:
        """The manifest of generation 0: the checkpoints of a version of Coterie without checkpoint generations.

        ``task_configs_``: the configs of all tasks of the connector, which contain no checkpoint generation. The source
        partitions of each task are those of a split now into as many tasks.

        :raises ConfigError: when a value in the first task's config is not valid.
        :raises WorldError: when the source cannot be reached.
        """
        source = self._configured_source(task_configs_[0], "task.class")
        split_function = source.plugin.split_function
        with plugin_stage("list_source_partitions"):
            source_partitions = source.plugin.list_source_partitions(source.config)
        with plugin_stage("split"):
            partitions_by_task = source.plugin.divide_partitions(source_partitions, len(task_configs_))
        split = Split(
            function=SplitFunction.PATH_HASH_V0 if split_function is SplitFunction.PATH_HASH_V1 else split_function,
            partitions_by_task=tuple(tuple(partitions_of_task) for partitions_of_task in partitions_by_task),
        )
        return Manifest(
            generation=GenerationId(number=0, id="flat"),
            split=use_digests_in_split_if_references(split, source, task_configs_[0]),
            config={key: value for key, value in task_configs_[0].items() if not key.startswith("task.")},
            inferred_values={},
            positions={},
            absent_partition_positions={},
        )

    def _sink_identity(self, config: Mapping[str, str]) -> Mapping[str, str | None]:
        """The identity of the place to which a connector with this config writes: :func:`sink_identity` with the
        worker's Kafka properties."""
        return sink_identity(self._resolve_references(config), self._config.worker_kafka_properties)

    def _try_remove_deduplication_data(
        self, connector: ConnectorName, manifest: Manifest, lineages: Mapping[int, str]
    ) -> bool:
        """Remove the data that the sink and the dead letter queue of the old checkpoint generation ``manifest`` keep to
        reject second copies of its batches. ``lineages``: the generation's checkpoint lineages by task number. Returns
        False, after logging the error, when that failed; see :data:`RemoveDeduplicationData`."""
        task_lineages = [
            TaskCheckpointLineage(task=ConnectorTaskId(connector, task), lineage_id=lineage_id)
            for task, lineage_id in lineages.items()
        ]
        try:
            with plugin_stage("remove_deduplication_data"):
                sink = configured_sink(self._resolve_references(manifest.config), self._config.worker_kafka_properties)
                sink.plugin.remove_deduplication_data(sink.config, task_lineages)
                queue.remove_deduplication_data(sink.config.config, task_lineages)
        except (CoterieError, OSError) as error:
            log.warning(
                "Connector %s: the old checkpoint generation %s is kept, because its data in the sink cannot be "
                "removed now; the next split of the connector tries again: %s",
                connector,
                manifest.generation,
                error_message(error),
            )
            return False
        return True

    def _run_batch_in_flight(
        self,
        fence: Fence,
        connector: ConnectorName,
        config: Mapping[str, str],
        source_partitions: frozenset[str],
        manifest: Manifest,
        task_number: int,
        held_checkpoint: HeldCheckpoint,
    ) -> None:
        """Run the batch in flight of ``held_checkpoint``, the checkpoint of the task ``task_number`` of the closed
        checkpoint generation ``manifest``: with the newest ``config``, but with the source partitions and the sink of
        that generation; see :mod:`coterie.spark.in_flight`. ``source_partitions``: the source partitions with the
        newest config.

        :raises SplitOrOffsetChangeAbortedError: when this worker does not know the generation's class of source.
        :raises SupersededError: when another worker has taken over the checkpoint.
        :raises TakenOverInSinkError: when a later start of the task has taken over in the sink.
        :raises FencedError: when ``fence`` was closed.
        :raises UnreachableError: when a server that the batch needs cannot be reached.
        :raises WorldError: when the batch fails for another reason or was not committed, or Spark is not running.
        """
        self._source_class_or_abort_split(connector, manifest.config)
        task_id = ConnectorTaskId(connector, task_number)
        log.info(
            "Task %s: batch %s was planned and not committed in checkpoint generation %s, which a new split of the "
            "connector has closed; running the batch now, then the tasks of the new split start",
            task_id,
            held_checkpoint.batch_id_in_flight,
            manifest.generation,
        )
        message_start = (
            f"Connector {connector} cannot be split again: batch {held_checkpoint.batch_id_in_flight} of task "
            f"{task_number} must be finished first"
        )
        spark = self._running_driver().spark
        try:
            with plugin_stage("start"):
                resolved_config = self._resolve_references(config)
                spark = new_redacting_session(spark, config, resolved_config)
                batch_config = config_for_batch_in_flight(
                    resolved_config,
                    replace(manifest, config=self._resolve_references(manifest.config)),
                    source_partitions,
                    self._config.worker_kafka_properties,
                )
                pipeline = Pipeline.of(
                    task_configs(connector, batch_config, manifest, batch_config)[task_number],
                    self._config.worker_kafka_properties,
                )
                query = TaskQuery(spark, task_id, pipeline, held_checkpoint, fence)
            query.run_batch_in_flight()
        except FencedError:
            raise
        except (PySparkException, Py4JError, CoterieError, OSError) as error:
            if is_checkpoint_taken_over_or_absent(held_checkpoint.path):
                raise SupersededError(
                    f"The checkpoint {held_checkpoint.path} was taken over by another worker, which also splits "
                    "the connector"
                ) from error
            if isinstance(error, TakenOverInSinkError):
                # Not SupersededError: no checkpoint was taken over, so the updater would run the batch again for ever.
                raise TakenOverInSinkError(f"{message_start}, and the sink rejects it: {error}") from error
            if isinstance(error, UnreachableError):
                message = f"{message_start}, and a server cannot be reached: {first_message_line(error)}"
                raise UnreachableError(message) from error
            raise WorldError(
                f"{message_start}, and this batch fails. Put a config with which the batch succeeds, or "
                f"delete the connector and create it again: {first_message_line(error)}"
            ) from error
        if find_batch_id_in_flight(held_checkpoint.path) is not None:
            if is_checkpoint_taken_over_or_absent(held_checkpoint.path):
                raise SupersededError(
                    f"The checkpoint {held_checkpoint.path} was taken over by another worker, which also splits "
                    "the connector"
                )
            raise WorldError(
                f"Connector {connector}: batch {held_checkpoint.batch_id_in_flight} of task {task_number}, which "
                "must be finished before the connector is split again, has ended without an error and is not "
                "committed; restart the connector to try again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimeLimitedPositionStore:
    """A position store of a source plug-in, each call of which has a time limit."""

    store: PositionStore

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        with plugin_stage("position_store.read"):
            return self.store.read(checkpoint, source_partitions)

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        with plugin_stage("position_store.write_to_new_checkpoint"):
            self.store.write_to_new_checkpoint(checkpoint, positions)


def _time_limited_store(store: PositionStore) -> PositionStore:
    """``store`` with a time limit of each call. An :class:`UnmovablePositionStore` is returned unchanged: it never
    blocks, and is recognised by its class."""
    return store if isinstance(store, UnmovablePositionStore) else _TimeLimitedPositionStore(store=store)
