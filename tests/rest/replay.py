"""Sends recorded calls to a worker in their order, as the recorder sent them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from urllib.parse import quote

import httpx

from tests.rest.recorded_calls import RecordedCall, body_of
from tests.rest.served import WorkerClient
from tests.worker.simulated import until

DELETING_SECTIONS = ("content types", "create", "large")
"""In these sections the recorder deletes each connector that a call has created, without recording the deletion."""


async def replay(
    worker: WorkerClient,
    calls: Sequence[RecordedCall],
    *,
    is_as_expected: Callable[[RecordedCall, httpx.Response], bool],
    within_s: float,
) -> AsyncIterator[tuple[RecordedCall, httpx.Response]]:
    """Send each call to ``worker``, and yield its response.

    The cluster needs time to settle after a write. So a read is sent again until its response is the expected one, but
    not longer than ``within_s``.
    """
    created: str | None = None
    for call in calls:
        if created is not None and call.method in ("POST", "PUT"):
            assert (await worker.ask("DELETE", created)).status_code == 204
            created = None
        await _until_connector_is_as_recorded(worker, call, within_s)
        response = await _expected_response(worker, call, is_as_expected, within_s)
        if response.status_code == 201 and call.section in DELETING_SECTIONS:
            created = f"/connectors/{quote(body_of(response)['name'], safe='')}"
        yield call, response


async def _until_connector_is_as_recorded(worker: WorkerClient, call: RecordedCall, within_s: float) -> None:
    """Wait before a write to a connector: until it has its recorded tasks, if the recorded response contains them; or
    until it has a status, if the call restarts it."""
    if call.method in ("GET", "HEAD"):
        return
    body = call.body if isinstance(call.body, dict) else {}
    tasks = body.get("tasks")
    if isinstance(tasks, list) and tasks:
        status_path, task_count = f"/connectors/{body['name']}/status", len(tasks)
    elif call.status == 204 and call.path.endswith("/restart") and "/tasks/" not in call.path:
        status_path, task_count = call.path.removesuffix("restart") + "status", None
    else:
        return

    async def is_as_recorded() -> bool:
        response = await worker.get(status_path)
        if response.is_error:
            return False
        status = response.json()
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return task_count in (None, len(status["tasks"])) and "UNASSIGNED" not in states

    with contextlib.suppress(TimeoutError):  # Then the response differs, and is shown.
        await until(is_as_recorded, within_s=within_s)


async def _expected_response(
    worker: WorkerClient,
    call: RecordedCall,
    is_as_expected: Callable[[RecordedCall, httpx.Response], bool],
    within_s: float,
) -> httpx.Response:
    end_s = time.monotonic() + within_s
    while True:
        response = await worker.send(call.method, call.path, call.content, call.headers)
        if call.method != "GET" or is_as_expected(call, response) or time.monotonic() > end_s:
            return response
        await asyncio.sleep(0.01)
