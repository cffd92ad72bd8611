"""A runtime that has the connectors of the recorded Kafka Connect worker."""

from collections.abc import Mapping, Sequence

from coterie.config.infos import ConfigInfos, make_config_infos
from coterie.config.plugins import UnknownPluginError, find_plugin
from coterie.herder.seams import TaskSpec
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange, OffsetsRefusedError
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.sources.kafka_positions import (
    KAFKA_OFFSET,
    KAFKA_PARTITION,
    KAFKA_TOPIC,
    parse_kafka_offset,
    parse_topic_partition,
)
from coterie.spark.sources.offset_values import partition_field, whole_number_offset
from tests.rest.recorded_plugins import PLUGINS, RecordedPluginsRuntime
from tests.worker.simulated import DEFINITION

POSITION_MAX = 2**63 - 1
RECORDED_ENDS = {("rec-lines", 0): 5600}
"""The Kafka partitions that the recorded sinks could read, with their end offsets."""


class RecordedRuntime(RecordedPluginsRuntime):
    """Validates, splits and starts as the recorded connectors did, and accepts the offsets that they accepted."""

    async def validate(
        self, config: Mapping[str, str], checkpointed_task_configs: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        name = config["connector.class"]
        try:
            find_plugin(PLUGINS, name)
        except UnknownPluginError:
            return make_config_infos(
                name, DEFINITION, config, {"connector.class": [f"Failed to find any class {name}"]}
            )
        return await super().validate(config, checkpointed_task_configs)

    async def start(self, spec: TaskSpec) -> None:
        if spec.config.get("file", "").startswith("/nonexistent/"):
            raise WorldError(f"Couldn't find or create file '{spec.config['file']}'")
        await super().start(spec)

    async def split(
        self,
        connector: str,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed_task_configs: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        has_one_file = "FileStreamSource" in config["connector.class"]
        count = 1 if has_one_file else int(config.get("tasks.max", "1"))
        return [{"task.class": f"task {number}", **config} for number in range(count)]

    async def change_offsets(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed_task_configs: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        if "FileStream" in config["connector.class"]:
            parse = _parsed_sink_offset if "Sink" in config["connector.class"] else _parsed_file_offset
            change = OffsetChange(offsets=tuple(map(parse, change.offsets)), removes_others=change.removes_others)
        await super().change_offsets(connector, incarnation, config, checkpointed_task_configs, change)


def _parsed_file_offset(offset: ConnectorOffset) -> ConnectorOffset:
    """:raises OffsetsRefusedError: when a file source cannot use ``offset``."""
    partition = partition_field(offset, "filename")
    position = whole_number_offset(offset, "position", maximum=POSITION_MAX)
    return ConnectorOffset(partition=partition, offset=None if position is None else {"position": position})


def _parsed_sink_offset(offset: ConnectorOffset) -> ConnectorOffset:
    """:raises OffsetsRefusedError: when a sink cannot use ``offset``."""
    topic, number = parse_topic_partition(offset)
    kafka_offset = parse_kafka_offset(offset)
    if (end := RECORDED_ENDS.get((topic, number))) is None:
        raise OffsetsRefusedError(f"The connector does not read the partition {topic}-{number}")
    if kafka_offset is not None and kafka_offset > end:
        raise OffsetsRefusedError(f"{topic}-{number} has no offset {kafka_offset}: its end is {end}")
    return ConnectorOffset(
        partition={KAFKA_PARTITION: number, KAFKA_TOPIC: topic},
        offset=None if kafka_offset is None else {KAFKA_OFFSET: kafka_offset},
    )
