"""A whole worker restarts its failed tasks as ``errors.restart.*`` says."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.config.secrets import MASK, register_secret_to_hide
from coterie.herder.restart_policy import RestartPolicy
from coterie.herder.seams import RetriableStartError, TaskSpec
from coterie.nouns.errors import ConfigError, CoterieError, WorldError
from coterie.spark import supervisor
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
        assert (
            f"sink.path={tmp_path / 'once' / 'out'} cannot be used: {tmp_path / 'once' / 'out'}: File exists"
            in failed["trace"]
        )
        assert waiting["trace"].startswith(
            "The query has failed (failures without progress: 4); the next attempt follows after "
        )
        assert (
            f"sink.path={tmp_path / 'always' / 'out'} cannot be used: {tmp_path / 'always' / 'out'}: File exists"
            in waiting["trace"]
        )

        for name in policies:
            (tmp_path / name / "out").unlink()
        await worker.until_running("always")
        assert rows_of(tmp_path / "always" / "out") == [1]
        assert (await task_of(worker, "once", "FAILED"))["trace"] == failed["trace"]
        attempts = [sum(line.startswith(f"Task {name}-0: the query") for line in caplog.messages) for name in policies]
        assert (attempts[0], attempts[1] >= 4) == (1, True)
        await worker.delete(*policies)


async def test_a_task_that_starts_while_the_checkpoint_folder_is_away_runs_when_the_folder_is_back(
    rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is away as after a failed mount: the mount point exists, and is empty."""
    monkeypatch.setattr(supervisor, "GENERATION_VISIBLE_TIMEOUT_MS", 0)
    policies = {
        "once": {"errors__restart__max": "0"},
        "always": {"errors__restart__max": "-1", "errors__restart__delay__max__ms": "500"},
    }
    checkpoints, away = tmp_path / "checkpoints", tmp_path / "away"
    async with rest_worker(rig, embedded_broker, tmp_path, monkeypatch) as worker:
        for name, keys in policies.items():
            write_file(tmp_path / name / "in", "a.csv", [(1, 1.0, 1)])
            await worker.create(name, rig.config(tmp_path / name, **keys))
            await worker.until_running(name)
            await worker.order("PUT", f"/connectors/{name}/pause")
            await task_of(worker, name, "PAUSED")
        checkpoints.rename(away)
        checkpoints.mkdir()
        for name in policies:
            await worker.order("PUT", f"/connectors/{name}/resume")
        failed = await task_of(worker, "once", "FAILED")
        waiting = await task_of(worker, "always", "RESTARTING")
        assert failed["trace"].startswith("Checkpoint generation ")
        assert " of the task has failed; the next one follows after 0." in waiting["trace"]
        assert f"was not found at {checkpoints}" in waiting["trace"]

        checkpoints.rmdir()
        away.rename(checkpoints)
        await worker.until_running("always")
        write_file(tmp_path / "always" / "in", "b.csv", [(2, 1.0, 1)])
        await rig.wait_until(lambda: rows_of(tmp_path / "always" / "out") == [1, 2])
        assert (await task_of(worker, "once", "FAILED"))["trace"] == failed["trace"]
        await worker.delete(*policies)


async def test_a_start_that_fails_has_the_policy_of_its_config_unless_it_can_never_succeed(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_start(spec: TaskSpec) -> Exception:
        with pytest.raises(CoterieError) as caught:
            await rig.runtime.start(spec)
        return caught.value

    config = rig.config(tmp_path, errors__restart__max="7", errors__restart__delay__max__ms="9")
    start = await rig.start(config, "start-fails")
    await rig.runtime.stop(start.task, grace_ms=0)

    register_secret_to_hide("a-secret-path")
    failures: list[Exception] = [
        PermissionError(13, "Permission denied", "/checkpoints"),
        WorldError("/a-secret-path is away"),
    ]
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise failures.pop(0)

        patch.setattr(supervisor, "take_over_in_open_generation", fail)
        for message in ("Permission denied: /checkpoints\n\nTraceback", f"/{MASK} is away"):
            error = await fail_start(start)
            assert isinstance(error, RetriableStartError)
            assert str(error).startswith(message)
            assert error.restart_policy == RestartPolicy(restarts_max=7, delay_max_ms=9)

    wrong = replace(start, config={**start.config, "source.format": "nothing"})
    assert isinstance(await fail_start(wrong), ConfigError)
    missing = replace(start, config={**start.config, "task.class": "no.such.Plugin"})
    assert isinstance(await fail_start(missing), ConfigError)
    await rig.runtime.start(start)
    await rig.runtime.stop(start.task, grace_ms=0)
