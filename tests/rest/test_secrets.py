"""A config may contain a password: no worker's log or trace contains values of a config."""

import asyncio
import logging

import pytest

from coterie.herder.machine import step
from coterie.herder.messages import Event
from coterie.herder.state import Herder, HerderOutput
from coterie.worker import worker as shell
from tests.rest.served import ServedCluster
from tests.worker.simulated import until

SECRETS = ("open-sesame", "friend")
FIRST, SECOND = (
    {"connector.class": "SimulatedSource", "tasks.max": "4", "sink.options.password": secret} for secret in SECRETS
)


async def test_no_trace_and_no_log_contains_values_of_a_config(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []

    def recording_step(herder: Herder, event: Event, *, now_ms: int) -> HerderOutput:
        output = step(herder, event, now_ms=now_ms)
        passed.extend(map(repr, (event, *output.effects)))
        return output

    monkeypatch.setattr(shell, "step", recording_step)
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    workers = [await cluster.serve() for _ in range(2)]
    for worker in workers:
        name = f"on-{worker.running.membership.id}"  # One of the two is split by a follower.
        assert (await worker.ask("POST", "/connectors", {"name": name, "config": FIRST})).is_success
        assert (await worker.ask("PUT", f"/connectors/{name}/config", SECOND)).is_success
        refused = await worker.ask("PUT", f"/connectors/{name}/config", {**FIRST, "tasks.max": SECRETS[0]})
        assert refused.is_client_error
        assert SECRETS[0] in refused.text, "the client that sent the value sees it in the error"
        refused = await worker.ask("PUT", f"/connectors/{name}/config", {**FIRST, "unjudgeable": SECRETS[0]})
        assert refused.is_client_error
        assert SECRETS[0] in refused.text
    for name in ("unsplittable", "unstartable", "unstoppable"):
        config = {"connector.class": "SimulatedSource", name: SECRETS[0]}
        assert (await workers[0].ask("POST", "/connectors", {"name": name, "config": config})).is_success
    for worker in workers:
        for one in workers:
            name = f"on-{one.running.membership.id}"
            await worker.until_running(name, 4)
            assert SECRETS[1] in (await worker.get(f"/connectors/{name}")).text
            assert SECRETS[1] in (await worker.get(f"/connectors/{name}/tasks")).text
    runtime = workers[0].running.runtime
    broken = next(task for task in runtime.running if task.connector.startswith("on-"))
    runtime.fail_query(broken, SECRETS[0], can_restart=False)
    for name in ("unsplittable", "unstartable", broken.connector):

        async def has_trace(name: str = name) -> bool:
            return f'"trace":"{SECRETS[0]}"' in (await workers[0].get(f"/connectors/{name}/status")).text

        await until(has_trace)
    await workers[0].until_running("unstoppable", 1)
    assert (await workers[0].ask("DELETE", "/connectors/unstoppable")).is_success
    await until(lambda: "Stopping task unstoppable-0 failed and is not tried again" in caplog.text)
    assert "To end the task now, restart this worker: ValueError" in caplog.text
    assert "Validating a connector's config failed; the client" in caplog.text
    assert "else this is a bug in Coterie: ValueError" in caplog.text
    kinds = {text.partition("(")[0] for text in passed}
    assert kinds > {"ConfigLinesRead", "RequestArrived", "SplitSucceeded", "SplitConnector", "ValidateConfig"}
    assert kinds > {"Reply", "StartTask", "AppendConfigLines", "ConfigValidationCompleted", "SendTaskConfigsToLeader"}
    assert kinds > {"SplitFailed", "TaskStartFailed", "TaskDied"}
    stories = [worker.running.worker._trace.recent_text(400) for worker in workers]
    # The audit log contains configs without their secrets: tests/rest/test_access.py.
    logged = [caplog.handler.format(record) for record in caplog.records if record.name != "coterie.audit"]
    for text in (*passed, *stories, *logged):
        assert not any(secret in text for secret in SECRETS), text[:300]
