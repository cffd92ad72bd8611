"""All calls recorded from a real Kafka Connect 4.3.1, sent to a worker: each response is equal to Connect's, or it is a
deviation of `docs/rest.md`.

Connect's connectors are simulated (`recorded_runtime`).
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.cli.workers.compose import access_rules
from coterie.config.worker import WorkerSettings
from coterie.nouns.membership import GroupProtocolName
from coterie.rest.endpoints import MAIN_ENDPOINTS, Role
from coterie.rest.resources.server import CONNECT_VERSION
from coterie.rest.users import PasswordHash, RestUser, write_users
from tests.rest.deviations import DEVIATIONS, TEST_BY_DEVIATION, deviation_of, documented_deviations, is_as_expected
from tests.rest.recorded_calls import RECORDINGS, RecordedCall, read_recording
from tests.rest.recorded_runtime import QUIET_LOGGERS, RECORDED_DATA, RecordedRuntime
from tests.rest.replay import replay
from tests.rest.served import ServedCluster, ServedConnectCluster, ServedWorker

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
def loggers() -> None:
    """All loggers have the level INFO, as the recorded ones."""
    for one in [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]:
        one.setLevel(logging.NOTSET)
    logging.root.setLevel(logging.INFO)


async def unexpected_responses(worker: ServedWorker, calls: Sequence[RecordedCall]) -> list[str]:
    """Send all ``calls`` to ``worker``, and return those whose response is not the expected one, with the response."""
    return [
        f"{call}\nexpected {call.status} {str(call.body)[:500]}\n     got {response.status_code} {response.text[:500]}"
        async for call, response in replay(worker, calls, is_as_expected=is_as_expected, within_s=30)
        if not is_as_expected(call, response)
    ]


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
        assert await unexpected_responses(worker, calls) == []


async def test_calls_to_a_worker_with_users_cors_and_switched_off_paths(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    write_users(users, {"admin": RestUser(role=Role.ADMIN, password_hash=PasswordHash.from_password("secret"))})
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
        assert await unexpected_responses(worker, calls) == []


def test_the_docs_have_exactly_the_deviations_that_recorded_calls_and_tests_show() -> None:
    calls = [call for recording in RECORDINGS for call in read_recording(recording)]
    used = {deviation.title for call in calls if (deviation := deviation_of(call)) is not None}
    assert used == {deviation.title for deviation in DEVIATIONS}
    documented = documented_deviations()
    assert len(set(documented)) == len(documented)
    assert set(documented) == used | TEST_BY_DEVIATION.keys()
    for title, test in TEST_BY_DEVIATION.items():
        file, _, name = test.partition("::")
        text = (Path(__file__).parents[1] / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), (title, test)


async def test_the_root_names_a_version_that_connects_clients_accept(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    root = (await worker.get("/")).json()
    # Nothing else: the Java client kafka-connect-client of jcustenborder refuses an object with unknown fields.
    assert root == {"version": CONNECT_VERSION, "commit": "unknown", "kafka_cluster_id": "simulated"}
    assert CONNECT_VERSION == "4.3.1"
