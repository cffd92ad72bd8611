"""A runtime that has the connectors of the recorded Kafka Connect worker."""

from collections.abc import Mapping, Sequence

from coterie.config.infos import ConfigInfos
from coterie.herder.seams import TaskSpec
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from tests.worker.simulated import SimulatedRuntime

_CLASS_NAMES = ("FileStreamSource", "FileStreamSink", "SleepySource")


class RecordedRuntime(SimulatedRuntime):
    """Splits and starts as the recorded connectors did; checks the keys that the recorded calls have wrong."""

    async def validate(
        self, config: Mapping[str, str], checkpointed_task_configs: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        infos = await super().validate(config, checkpointed_task_configs)
        simple_name = config["connector.class"].rpartition(".")[2].removesuffix("Connector")
        if simple_name not in _CLASS_NAMES:
            return infos.with_errors({"connector.class": [f"Failed to find any class {config['connector.class']}"]})
        if simple_name == "FileStreamSource" and "topic" not in config:
            missing = 'Missing required configuration "topic" which has no default value.'
            return infos.with_errors({"topic": [missing]})
        return infos

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
