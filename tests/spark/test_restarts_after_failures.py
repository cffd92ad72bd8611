"""A whole worker restarts its failed tasks as ``errors.restart.*`` says."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import Rig, rows_of, write_file
from tests.spark.rest_worker import RestWorker, rest_worker, until_true

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


async def task_of(worker: RestWorker, connector: str, state: str) -> Any:
    """The status of the connector's only task, as soon as it has this state."""
    tasks: list[Any] = []

    async def has_state() -> bool:
        tasks[:] = (await worker.status(connector)).get("tasks", ())
        return [task["state"] for task in tasks] == [state]

    await until_true(has_state, f"the task of {connector} is {state}")
    return tasks[0]


async def test_a_task_fails_at_once_or_is_restarted_until_its_folder_can_be_written_again(
    rig: Rig,
    embedded_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "coterie.spark")
    policies = {
        "once": {"errors__restart__max": "0"},
        "always": {"errors__restart__max": "-1", "errors__restart__delay__max__ms": "1000"},
    }
    async with rest_worker(rig, embedded_broker, tmp_path, monkeypatch) as worker:
        for name, keys in policies.items():
            folder = tmp_path / name
            config = rig.config(folder, **keys)
            (folder / "out").write_text("in the way")
            write_file(folder / "in", "a.csv", [(1, 1.0, 1)])
            await worker.create(name, config)
        failed = await task_of(worker, "once", "FAILED")
        waiting = await task_of(worker, "always", "RESTARTING")
        assert f"sink.path={tmp_path / 'once' / 'out'}: File exists" in failed["trace"]
        assert waiting["trace"].startswith(
            "The query has failed 4 times without progress and is started again after 1 s"
        )
        assert f"sink.path={tmp_path / 'always' / 'out'}: File exists" in waiting["trace"]

        for name in policies:
            (tmp_path / name / "out").unlink()
        await worker.until_running("always")
        assert rows_of(tmp_path / "always" / "out") == [1]
        assert (await task_of(worker, "once", "FAILED"))["trace"] == failed["trace"]
        attempts = [sum(line.startswith(f"Task {name}-0: the query") for line in caplog.messages) for name in policies]
        assert (attempts[0], attempts[1] >= 4) == (1, True)
        await worker.delete(*policies)
