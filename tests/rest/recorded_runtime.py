"""A runtime that has the connectors of the recorded Kafka Connect worker."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.config.definition import ConfigDef, OneOfPluginClasses
from coterie.config.infos import ConfigInfos, make_config_infos
from coterie.config.plugins import UnknownPluginError, find_plugin
from coterie.config.providers import ConfigProviders, EnvVarConfigProvider, FileConfigProvider
from coterie.herder.seams import SplitResult, TaskProgressed, TaskSpec
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange, OffsetsRefusedError
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.logger_levels import LoggerLevel, is_same_or_descendant
from coterie.spark.sources.kafka_positions import (
    KAFKA_OFFSET,
    KAFKA_PARTITION,
    KAFKA_TOPIC,
    parse_kafka_offset,
    parse_topic_partition,
)
from coterie.spark.sources.offset_values import parse_whole_number_offset, require_exact_partition_fields
from tests.rest.recorded_calls import RECORDINGS, read_recording
from tests.rest.recorded_plugins import PLUGINS, RecordedPluginsRuntime
from tests.worker.simulated import DEFINITION

POSITION_MAX = 2**63 - 1
FILE = "/data/in.txt"
"""The only file that the recorded sources could read."""
QUIET_LOGGERS = ("org.apache.kafka.clients", "org.apache.kafka.common.config.AbstractConfig")
"""The loggers to which the logging configuration of the recorded workers gave the level WARN; the others had INFO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedData:
    """What the connectors of a recording could read."""

    file_size: int
    """The size of :data:`FILE` in bytes."""
    topic: str
    """A topic of one partition."""
    end_offset: int
    """The end offset of its partition."""
    read_before: frozenset[str] = frozenset()
    """Connectors that had read all data before the recording: they have offsets, but no topics."""

    def partition_end(self, topic: str, partition: int) -> int | None:
        """The end offset of a Kafka partition; None if there is no such partition."""
        return self.end_offset if (topic, partition) == (self.topic, 0) else None


RECORDED_DATA = {
    "connect-rest.json": RecordedData(file_size=792, topic="dmp-lines", end_offset=100),
    "connect-rest-2.json": RecordedData(
        file_size=692,
        topic="rec-lines",
        end_offset=5600,
        read_before=frozenset({"src1"}),
    ),
}
"""What the connectors could read, by recording."""


def recorded_jvm_loggers() -> set[str]:
    """The loggers of the recorded worker: the names in the responses that contain loggers, long ones of which are cut.
    Those that a call has created are not among them."""
    calls = [call for name in RECORDINGS for call in read_recording(name) if call.path.startswith("/admin/loggers")]
    names = {
        name
        for call in calls
        if call.method in ("GET", "PUT") and call.status == 200
        for name in re.findall(r"org\.[\w.$]+", json.dumps(call.body))
    }
    return names - {call.path.rpartition("/")[2].partition("?")[0] for call in calls if call.method == "PUT"}


class RecordedFileProvider(FileConfigProvider):
    """The file provider of the recorded worker, which had one file."""

    def value_of(self, path: str, key: str) -> str:
        return "recorded" if path == "/data/secrets.properties" else super().value_of(path, key)


RECORDED_PROVIDERS = ConfigProviders(
    by_name={
        "env": EnvVarConfigProvider.from_parameters({}),
        "file": RecordedFileProvider.from_parameters({}),
    }
)
"""The config providers of the recorded worker."""


class RecordedRuntime(RecordedPluginsRuntime):
    """Validates, splits and starts as the recorded connectors did, reads what they read, and accepts the offsets that
    they accepted."""

    def __init__(self, data: RecordedData) -> None:
        super().__init__()
        self._data = data
        self.loggers = {
            name: LoggerLevel.WARN
            if any(is_same_or_descendant(name, quiet) for quiet in QUIET_LOGGERS)
            else LoggerLevel.INFO
            for name in ("root", *recorded_jvm_loggers())
        }
        self._read_all = set(data.read_before)
        """Connectors that have read all data. As in Connect, a connector that is deleted and created again continues at
        its old offsets."""

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        name = config["connector.class"]
        try:
            find_plugin(PLUGINS, name)
        except UnknownPluginError:
            names = tuple(sorted(plugin.class_name for plugin in PLUGINS if plugin.type.is_connector))
            validator = OneOfPluginClasses(names, interface_name="Connector")
            definition = ConfigDef((replace(DEFINITION["connector.class"], validator=validator),))
            return make_config_infos(name, definition, config, definition.errors(config))
        try:
            RECORDED_PROVIDERS.resolve(config)
        except ConfigError as error:
            return make_config_infos(name, DEFINITION, config, error.errors)
        return await super().validate(config, configs_of_checkpointed_tasks)

    async def start(self, spec: TaskSpec) -> None:
        if spec.config.get("file", "").startswith("/nonexistent/"):
            raise WorldError(f"Couldn't find or create file '{spec.config['file']}'")
        await super().start(spec)
        if "FileStream" in spec.config["connector.class"]:
            self._read_to_end(spec)

    def _read_to_end(self, spec: TaskSpec) -> None:
        """The task reads what it has not read: its offset is then the end. A task that reads nothing has no topic."""
        if "Sink" in spec.config["connector.class"]:
            topic = spec.config["topics"]
            end = self._data.partition_end(topic, 0)
            offset = _sink_offset(topic, 0, end)
        else:
            topic = spec.config["topic"]
            end = self._data.file_size if spec.config.get("file") == FILE else None
            offset = ConnectorOffset(partition={"filename": spec.config["file"]}, offset={"position": end})
        if end is None:
            return
        offsets = self.registry.offsets.setdefault((spec.task.connector, spec.connector_incarnation), {})
        offsets[str(offset.partition)] = offset
        if spec.task.connector not in self._read_all:
            self._read_all.add(spec.task.connector)
            self.emit(TaskProgressed(task=spec.task, batch_id=1, input_rows=1, topics=frozenset([topic])))

    async def split(
        self,
        connector: str,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        has_one_file = "FileStreamSource" in config["connector.class"]
        count = 1 if has_one_file else int(config.get("tasks.max", "1"))
        return SplitResult(task_configs=[{"task.class": f"task {number}", **config} for number in range(count)])

    async def change_offsets(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        if "FileStream" in config["connector.class"]:
            parse = self._parsed_sink_offset if "Sink" in config["connector.class"] else _parsed_file_offset
            change = OffsetChange(offsets=tuple(map(parse, change.offsets)), removes_others=change.removes_others)
        await super().change_offsets(connector, incarnation, config, configs_of_checkpointed_tasks, change)
        self._read_all.discard(connector)

    def _parsed_sink_offset(self, offset: ConnectorOffset) -> ConnectorOffset:
        """:raises OffsetsRefusedError: when a file sink cannot use ``offset``."""
        topic, number = parse_topic_partition(offset)
        kafka_offset = parse_kafka_offset(offset)
        if (end := self._data.partition_end(topic, number)) is None:
            raise OffsetsRefusedError(f"The connector does not read the partition {topic}-{number}")
        if kafka_offset is not None and kafka_offset > end:
            raise OffsetsRefusedError(f"{topic}-{number} has no offset {kafka_offset}: its end is {end}")
        return _sink_offset(topic, number, kafka_offset)


def _sink_offset(topic: str, number: int, kafka_offset: int | None) -> ConnectorOffset:
    return ConnectorOffset(
        partition={KAFKA_PARTITION: number, KAFKA_TOPIC: topic},
        offset=None if kafka_offset is None else {KAFKA_OFFSET: kafka_offset},
    )


def _parsed_file_offset(offset: ConnectorOffset) -> ConnectorOffset:
    """:raises OffsetsRefusedError: when a file source cannot use ``offset``."""
    partition = require_exact_partition_fields(offset, "filename")
    position = parse_whole_number_offset(offset, "position", maximum=POSITION_MAX)
    return ConnectorOffset(partition=partition, offset=None if position is None else {"position": position})
