"""A config may hold a password: no worker's log or trace shows what stands in one."""

import asyncio
import logging

import pytest

from coterie.herder.machine import step
from coterie.herder.messages import Event
from coterie.herder.state import Herder, HerderOutput
from coterie.worker import worker as shell
from tests.rest.served import ServedCluster
from tests.rest.test_app import until_running

SECRETS = ("open-sesame", "friend")
FIRST, SECOND = (
    {"connector.class": "SimulatedSource", "tasks.max": "4", "sink.options.password": secret} for secret in SECRETS
)


async def test_nothing_that_is_traced_or_logged_shows_what_stands_in_a_config(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []

    def overheard(herder: Herder, event: Event, *, now_ms: int) -> HerderOutput:
        output = step(herder, event, now_ms=now_ms)
        passed.extend(map(repr, (event, *output.effects)))
        return output

    monkeypatch.setattr(shell, "step", overheard)
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    workers = [await cluster.serve() for _ in range(2)]
    for worker in workers:
        name = f"on-{worker.running.membership.id}"  # One of the two is split by a follower.
        assert (await worker.ask("POST", "/connectors", {"name": name, "config": FIRST})).is_success
        assert (await worker.ask("PUT", f"/connectors/{name}/config", SECOND)).is_success
        assert (await worker.ask("PUT", f"/connectors/{name}/config", {**FIRST, "tasks.max": "0"})).is_client_error
    for worker in workers:
        for one in workers:
            name = f"on-{one.running.membership.id}"
            await until_running(worker, name, 4)
            assert SECRETS[1] in (await worker.get(f"/connectors/{name}")).text
            assert SECRETS[1] in (await worker.get(f"/connectors/{name}/tasks")).text
    kinds = {text.partition("(")[0] for text in passed}
    assert kinds > {"ConfigLinesRead", "RequestArrived", "ConnectorSplit", "SplitConnector", "ValidateConfig"}
    assert kinds > {"Reply", "StartTask", "AppendConfig", "ConfigValidated", "PublishTaskConfigs"}
    stories = [worker.running.worker._trace.story(400) for worker in workers]
    for text in (*passed, *stories, *(record.getMessage() for record in caplog.records)):
        assert not any(secret in text for secret in SECRETS), text[:300]
