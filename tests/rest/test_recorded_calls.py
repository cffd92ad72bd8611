"""All calls recorded from a real Kafka Connect 4.3.1, sent to a worker: each response is equal to Connect's, or it is a
deviation of `docs/rest.md`.

Connect's connectors are simulated (`recorded_runtime`). ``not-yet-equal.json`` has the numbers of the calls that must
become equal; a call that has become equal must be removed from it.
"""

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from coterie.cli.workers.compose import access_rules
from coterie.config.worker import WorkerSettings
from coterie.nouns.membership import GroupProtocolName
from coterie.rest.endpoints import MAIN_ENDPOINTS, Role
from coterie.rest.resources.server import CONNECT_VERSION
from coterie.rest.users import PasswordHash, RestUser, write_users
from tests.rest.deviations import DEVIATIONS, deviation_of, is_as_expected
from tests.rest.recorded_calls import RECORDINGS, VECTORS, RecordedCall, read_recording
from tests.rest.recorded_runtime import QUIET_LOGGERS, RECORDED_DATA, RecordedRuntime
from tests.rest.served import ServedCluster, ServedConnectCluster, ServedWorker
from tests.worker.simulated import until

logger = logging.getLogger(__name__)

NOT_YET_EQUAL: Mapping[str, Sequence[int]] = json.loads((VECTORS / "not-yet-equal.json").read_text())
DELETING_SECTIONS = ("content types", "create", "large")
"""In these sections the recorder deleted each connector that a call had created, without recording the deletion."""
SECTIONS_OF_OTHER_SETTINGS = ("basic auth", "cors and headers", "switched off")
"""These sections were recorded at another worker, which had no connectors."""
OTHER_SETTINGS = {
    "group.id": "recorded",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "statuses",
    "checkpoint.location": "/checkpoints",
    "topic.tracking.enable": "false",
    "admin.listeners": "",
    "access.control.allow.origin": "http://ui.example",
    "access.control.allow.methods": "GET,POST,PUT",
    "response.http.headers.config": "set X-Frame-Options: DENY",
}
"""The settings of that worker, beside its user ``admin`` with the password ``secret``."""
KAFKA_RECORD_SIZE_MAX = 1_048_576
"""The greatest record that the recorded worker's producer sent."""


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """All loggers have the level INFO, as the recorded ones; after the test those that it has created are removed."""
    by_name = logging.root.manager.loggerDict
    names = set(by_name)
    for one in [one for one in by_name.values() if isinstance(one, logging.Logger)]:
        one.setLevel(logging.NOTSET)
    logging.root.setLevel(logging.INFO)
    yield
    for name in by_name.keys() - names:
        if name.startswith(("org.", "brand.")):
            del by_name[name]


async def replay(worker: ServedWorker, calls: Sequence[RecordedCall], not_yet_equal: Sequence[int]) -> list[int]:
    """Send all ``calls`` to ``worker``, and return the numbers of those whose response is not the expected one."""
    unexpected = []
    created: str | None = None
    for call in calls:
        if created is not None and call.method in ("POST", "PUT"):
            assert (await worker.ask("DELETE", created)).status_code == 204
            created = None
        if call.number not in not_yet_equal:
            await until_connector_has_the_recorded_tasks(worker, call)
        response = await expected_response(worker, call, within_s=0.05 if call.number in not_yet_equal else 5)
        if not is_as_expected(call, response):
            unexpected.append(call.number)
            if call.number not in not_yet_equal:
                expected, got = f"{call.status} {call.body}", f"{response.status_code} {response.text}"
                logger.error("%s\nexpected %.500s\n     got %.500s", call, expected, got)
        if response.status_code == 201 and call.section in DELETING_SECTIONS:
            created = response.headers["location"]
    return unexpected


async def until_connector_has_the_recorded_tasks(worker: ServedWorker, call: RecordedCall) -> None:
    """Wait before a write to a connector, as the recorder did, whose response contains the connector's tasks."""
    if call.method in ("GET", "HEAD") or not isinstance(call.body, dict):
        return
    if not isinstance(call.body.get("tasks"), list) or not call.body["tasks"]:
        return

    async def has_tasks() -> bool:
        response = await worker.get(f"/connectors/{call.body['name']}/status")
        if response.is_error:
            return False
        status = response.json()
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return len(status["tasks"]) == len(call.body["tasks"]) and "UNASSIGNED" not in states

    with contextlib.suppress(TimeoutError):  # Then the response differs, and is shown.
        await until(has_tasks)


async def expected_response(worker: ServedWorker, call: RecordedCall, *, within_s: float) -> httpx.Response:
    """The response to ``call``. A read is sent again until its response is the expected one, since the recorder waited
    for the cluster to settle; after ``within_s`` the last response is returned."""
    end_s = time.monotonic() + within_s
    while True:
        response = await worker.send(call.method, call.path, call.content, call.headers)
        if call.method != "GET" or is_as_expected(call, response) or time.monotonic() > end_s:
            return response
        await asyncio.sleep(0.01)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("group_protocol", list(GroupProtocolName))
async def test_every_recorded_call_gets_connects_response_or_a_deviation_of_the_docs(
    recording: str, group_protocol: GroupProtocolName, tmp_path: Path
) -> None:
    is_connect_group = group_protocol is GroupProtocolName.CONNECT
    async with ServedConnectCluster(tmp_path) if is_connect_group else ServedCluster() as cluster:
        cluster.config_log.value_size_max = KAFKA_RECORD_SIZE_MAX
        worker = await cluster.serve(runtime=RecordedRuntime(RECORDED_DATA[recording]))
        calls = [call for call in read_recording(recording) if call.section not in SECTIONS_OF_OTHER_SETTINGS]
        if recording == RECORDINGS[1]:  # It shows that these levels had been set before.
            for name in QUIET_LOGGERS:
                await worker.ask("PUT", f"/admin/loggers/{name}", {"level": "INFO"})
        unexpected = await replay(worker, calls, NOT_YET_EQUAL[recording])
    listed = set(NOT_YET_EQUAL[recording])
    assert not set(unexpected) - listed, "these responses are neither Connect's nor a deviation: see the log"
    assert not listed - set(unexpected), "these responses are as expected now: remove them from not-yet-equal.json"


async def test_calls_to_a_worker_with_users_cors_and_switched_off_paths(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    write_users(users, {"admin": RestUser(role=Role.ADMIN, password=PasswordHash.of("secret"))})
    settings = WorkerSettings.from_properties({**OTHER_SETTINGS, "rest.users.file": str(users)})
    calls = [call for call in read_recording(RECORDINGS[1]) if call.section in SECTIONS_OF_OTHER_SETTINGS]
    assert len(calls) == 16
    async with ServedCluster() as cluster:
        worker = await cluster.serve(
            runtime=RecordedRuntime(RECORDED_DATA[RECORDINGS[1]]),
            access=access_rules(settings),
            endpoints=MAIN_ENDPOINTS,
            topic_tracking_enabled=settings.topic_tracking_enable,
        )
        assert not await replay(worker, calls, [])


def test_each_deviation_is_used_and_has_a_row_with_its_reason_in_the_docs() -> None:
    calls = [call for recording in RECORDINGS for call in read_recording(recording)]
    used = {deviation.title for call in calls if (deviation := deviation_of(call)) is not None}
    assert used == {deviation.title for deviation in DEVIATIONS}
    table = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    for title in used:
        assert re.search(rf"^\| {re.escape(title)} \|.+\|.+\|.+\|$", table, re.MULTILINE), title


async def test_the_root_names_a_version_that_connects_clients_accept(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    root = (await worker.get("/")).json()
    assert root["version"] == CONNECT_VERSION == "4.3.1"
    assert root["kafka_cluster_id"] == "simulated"
    assert root["coterie_version"]
