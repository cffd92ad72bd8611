"""Folders of file sources that a config names by a reference: their names are in no task config and no manifest."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from coterie.config.providers import ConfigProviders
from coterie.herder.seams import TaskSpec
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.events import EventQueue
from coterie.spark.session import SparkDriver
from coterie.spark.splitting import Splitter
from tests.spark.conftest import Rig, rows_of, write_file
from tests.spark.connector_tasks import INCARNATION

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]


class Referring:
    """Splits connectors with references to the files of a folder, and runs their tasks on the shared runtime."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.folder = folder
        self._rig = rig
        self._providers = ConfigProviders.from_properties(
            {
                "config.providers": "directory",
                "config.providers.directory.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
            }
        )
        self._splitter = Splitter(
            replace(rig.spark_runtime._config, config_providers=self._providers),
            EventQueue(),
            lambda: cast(SparkDriver, rig.spark_runtime._driver),
            rig.spark_runtime._calls,
        )

    def write(self, name: str) -> None:
        """Let references refer to the folder ``name``."""
        (self.folder / "name").write_text(name)

    def config(self, name: str | None) -> dict[str, str]:
        """A config that reads the folder ``name``; None means the folder to which the reference refers."""
        folder = name or f"${{directory:{self.folder}:name}}"
        return self._rig.config(self.folder) | {"source.path": f"{self.folder}/{folder}"}

    async def split(self, connector: str, name: str | None, *before: Mapping[str, str]) -> Mapping[str, str]:
        """The config of the only task of the connector, with the config ``config(name)``."""
        connector_name = ConnectorName(connector)
        fence = self._splitter.add_fence(connector_name)
        result = await asyncio.to_thread(
            self._splitter.split, fence, connector_name, INCARNATION, self.config(name), before
        )
        (task,) = result.task_configs
        return task

    async def run(self, connector: str, task_config: Mapping[str, str], *rows: int) -> None:
        """Run the task until the sink has exactly these rows."""
        task = ConnectorTaskId(ConnectorName(connector), 0)
        config = self._providers.resolve(task_config)
        await self._rig.runtime.start(TaskSpec(task=task, connector_incarnation=INCARNATION, config=config))
        await self._rig.wait_until(lambda: len(rows_of(self.folder / "out")) >= len(rows))
        await self._rig.runtime.stop(task, grace_ms=10_000)
        assert rows_of(self.folder / "out") == list(rows)

    def manifests(self, connector: str) -> list[str]:
        """The texts of the connector's manifests, the oldest first."""
        folder = self._rig.spark_runtime._config.checkpoint_location / f"{connector}-{INCARNATION}"
        return [path.read_text() for path in sorted(folder.glob("gen-*/manifest.json"))]


async def test_checkpoints_with_the_name_of_a_folder_continue_with_a_reference_to_the_folder(
    rig: Rig, tmp_path: Path
) -> None:
    referring = Referring(rig, tmp_path)
    write_file(tmp_path / "first-folder", "a.csv", [(0, 1.0, 1)])
    named = await referring.split("named", "first-folder")
    assert json.loads(named["task.parts"]) == [f"{tmp_path}/first-folder"]
    await referring.run("named", named, 0)

    referring.write("first-folder")
    referred = await referring.split("named", None, named)
    assert referred["generation"] == named["generation"]
    assert "first-folder" not in json.dumps(referred)
    write_file(tmp_path / "first-folder", "b.csv", [(1, 1.0, 1)])
    await referring.run("named", referred, 0, 1)

    # Another folder is another source partition, and a folder that was read is not read again.
    referring.write("second-folder")
    write_file(tmp_path / "second-folder", "c.csv", [(2, 1.0, 1)])
    moved = await referring.split("named", None, referred)
    assert moved["generation"] != named["generation"]
    assert moved["task.parts"] != referred["task.parts"]
    await referring.run("named", moved, 0, 1, 2)
    referring.write("first-folder")
    write_file(tmp_path / "first-folder", "d.csv", [(3, 1.0, 1)])
    await referring.run("named", await referring.split("named", None, moved), 0, 1, 2, 3)


async def test_the_manifest_of_a_connector_with_a_reference_does_not_contain_the_folder(
    rig: Rig, tmp_path: Path
) -> None:
    referring = Referring(rig, tmp_path)
    referring.write("secret-folder")
    write_file(tmp_path / "secret-folder", "a.csv", [(0, 1.0, 1)])
    task = await referring.split("referred", None)
    (manifest,) = referring.manifests("referred")
    assert "secret-folder" not in manifest + json.dumps(task)
    assert "${directory:" in manifest
    await referring.run("referred", task, 0)
    # The reference can be replaced by the folder itself.
    named = await referring.split("referred", "secret-folder", task)
    assert (named["generation"], len(referring.manifests("referred"))) == (task["generation"], 1)
