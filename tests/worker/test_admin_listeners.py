"""A composed worker serves ``/admin`` where ``admin.listeners`` says, and ``/metrics`` at all its addresses."""

import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.composed import ComposedFleet
from tests.worker.simulated import SimulatedRuntime, until

LOGGERS, HEALTH, METRICS = "/admin/loggers/root", "/health", "/metrics"


@pytest.mark.parametrize(
    ("setting", "main", "admin"),
    [
        ({}, {LOGGERS: 200, HEALTH: 200, METRICS: 200}, None),
        ({"admin.listeners": ""}, {LOGGERS: 404, HEALTH: 200, METRICS: 200}, None),
        (
            {"admin.listeners": "http://127.0.0.1:0"},
            {LOGGERS: 404, HEALTH: 200, METRICS: 200},
            {LOGGERS: 200, HEALTH: 404, METRICS: 200},
        ),
    ],
    ids=["unset", "empty", "another address"],
)
async def test_each_address_serves_exactly_its_paths(
    embedded_broker: EmbeddedBroker,
    setting: Mapping[str, str],
    main: Mapping[str, int],
    admin: Mapping[str, int] | None,
) -> None:
    group = f"admin-{uuid.uuid4().hex[:8]}"
    topics = {f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")}
    needed = {"bootstrap.servers": embedded_broker.bootstrap_servers, "group.id": group, "checkpoint.location": "/c"}
    async with AsyncExitStack() as stack:
        fleet = ComposedFleet({**needed, **topics}, stack)
        worker = await fleet.start("a", SimulatedRuntime(), setting)

        async def is_running() -> bool:
            return await worker.view() is not None

        await until(is_running, within_s=60)
        expected = {worker.url: main, **(dict.fromkeys(worker.admin_urls, admin) if admin else {})}
        assert len(worker.admin_urls) == (0 if admin is None else 1)
        for url, statuses in expected.items():
            for path, status in statuses.items():
                answer = await worker.client.get(url + path)
                assert answer.status_code == status, (url, path)
                if status == 404:
                    assert answer.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
        api = (await worker.client.get(f"{worker.url}/coterie/openapi.json")).json()
        assert ("/admin/loggers" in api["paths"]) is (main[LOGGERS] == 200)
        await worker.stop()
