"""One connector on a real runtime, without a worker."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.herder.seams import TaskSpec
from coterie.nouns.connector_offsets import RESET_OFFSETS, ConnectorOffset, OffsetChange
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from tests.spark.conftest import Rig

NAMES = ["a b", "ü", "%41", "c+d", "e#f", *(f"{number}" for number in range(7))]
INCARNATION = Incarnation("i")


class Tasks:
    """The tasks of one connector, split and started as by an owner and its workers."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = ConnectorName(name)
        self.configs: list[Mapping[str, str]] = []
        self.running: list[ConnectorTaskId] = []

    @property
    def folder(self) -> Path:
        return self.rig.spark_runtime._config.checkpoint_location / f"{self.name}-i"

    async def split(self, config: Mapping[str, str]) -> None:
        self.configs = list((await self.rig.split(self.name, INCARNATION, config, self.configs)).task_configs)

    async def start(self) -> None:
        for index, config in enumerate(self.configs):
            task = ConnectorTaskId(self.name, index)
            await self.rig.runtime.start(TaskSpec(task=task, connector_incarnation=INCARNATION, config=config))
            self.running.append(task)

    async def stop(self) -> None:
        for task in self.running:
            await self.rig.runtime.stop(task, grace_ms=10_000)
        self.running = []

    def held(self, index: int) -> Path:
        held = self.rig.spark_runtime.held_checkpoint(ConnectorTaskId(self.name, index))
        assert held is not None
        return held.path

    async def change_offsets(self, config: Mapping[str, str], *offsets: ConnectorOffset) -> None:
        """Change the offsets; without any, remove all."""
        change = OffsetChange(offsets=offsets) if offsets else RESET_OFFSETS
        await self.rig.runtime.change_offsets(self.name, INCARNATION, config, self.configs, change)

    async def offsets(self, config: Mapping[str, str]) -> Sequence[ConnectorOffset]:
        return await self.rig.runtime.read_offsets(self.name, INCARNATION, config)
