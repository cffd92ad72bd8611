"""An unmodified Kafka Connect worker lives on the embedded broker: group, three topics, transactions that fence."""

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.broker.conftest import raw_client
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.faults.row import KEYS, Scene
from tests.kafka.real_kafka import TIED_TO_ITS_PARENT
from tests.kafka.tools import Tools

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.timeout(240)]

DEADLINE_S = 100

PROPERTIES = """\
bootstrap.servers={bootstrap}
group.id={group}
config.storage.topic={group}-configs
offset.storage.topic={group}-offsets
status.storage.topic={group}-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
listeners=http://127.0.0.1:0
plugin.path={plugins}
plugin.discovery=service_load
exactly.once.source.support=enabled
"""
"""With exactly-once its leader writes to the config topic in transactions, and fences the leader before it."""


def described(port: int, group_id: str) -> Any:
    with raw_client(port) as client:
        asked = {"groups": (group_id,), "include_authorized_operations": False}
        (group,) = Scene(client).ask("DescribeGroups", 5, asked).groups
        return group


def wait_state(port: int, group_id: str, state: str, log: Path) -> Any:
    deadline_s = time.monotonic() + DEADLINE_S
    while (group := described(port, group_id)).group_state != state:
        assert time.monotonic() < deadline_s, f"{group}\n{log.read_text()[-3000:]}"
        time.sleep(0.1)
    return group


def wait_logged(log: Path, sentence: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while sentence not in log.read_text():
        assert time.monotonic() < deadline_s, log.read_text()[-3000:]
        time.sleep(0.1)


@contextmanager
def running(command: list[str], log: Path, pid: Path) -> Iterator[None]:
    """A process that ends with the block, or with whoever started it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["sh", "-c", TIED_TO_ITS_PARENT, str(pid), *command], stdin=subprocess.PIPE, stdout=out, stderr=out
        )
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(DEADLINE_S)


def test_a_connect_worker_of_kafkas_own_joins_works_and_leaves(
    tools: Tools, embedded_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    group_id = f"connect-{uuid.uuid4().hex[:8]}"
    properties, log, pid = (tmp_path / name for name in ("worker.properties", "worker.log", "worker.pid"))
    properties.write_text(
        PROPERTIES.format(bootstrap=embedded_broker.bootstrap_servers, group=group_id, plugins=tmp_path)
    )
    with running(tools.command("connect-distributed", str(properties), log_level="INFO"), log, pid):
        group = wait_state(embedded_broker.port, group_id, "Stable", log)
        assert (group.protocol_type, group.protocol_data, len(group.members)) == ("connect", "sessioned", 1)
        wait_logged(log, "Finished starting connectors and tasks")
        wait_logged(log, f"transactionalId=connect-cluster-{group_id}] ProducerId set to")
        with raw_client(embedded_broker.port) as client:
            topics = client.ask(KEYS["ListConfigResources"], 1, resource_types=(2,)).config_resources
        assert {f"{group_id}-{what}" for what in ("configs", "offsets", "status")} <= {
            topic.resource_name for topic in topics
        }
        subprocess.run(["kill", "-TERM", pid.read_text().strip()], check=True)
        wait_state(embedded_broker.port, group_id, "Empty", log)
    assert " ERROR " not in log.read_text()
