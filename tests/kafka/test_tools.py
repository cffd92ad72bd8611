"""Kafka's own command-line tools for topics, configs, groups and the cluster, against the embedded broker."""

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker.apis.connect_groups.worker import Worker
from tests.broker.conftest import raw_client
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.tools import Tools

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.timeout(300)]

DEADLINE_S = 60


class BrokerTools:
    """Kafka's tools with the address of one broker."""

    def __init__(self, tools: Tools, broker: EmbeddedBroker) -> None:
        self._tools = tools
        self.bootstrap = broker.bootstrap_servers

    def __call__(self, tool: str, *arguments: str) -> str:
        ran = self._tools.run(tool, *arguments, "--bootstrap-server", self.bootstrap)
        assert "ERROR" not in ran.err, ran
        return ran.out


@pytest.fixture
def at(tools: Tools, embedded_broker: EmbeddedBroker) -> BrokerTools:
    return BrokerTools(tools, embedded_broker)


def test_kafkas_tools_create_change_and_delete_a_topic(at: BrokerTools, tmp_path: Path) -> None:
    topic = f"tools-{uuid.uuid4().hex[:8]}"
    created = at("kafka-topics", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=1000")
    assert f"Created topic {topic}." in created
    at("kafka-topics", "--alter", "--topic", topic, "--partitions", "3")
    added, deleted = "max.message.bytes=2000,cleanup.policy=[compact,delete]", "retention.ms"
    altered = ("--alter", "--entity-type", "topics", "--entity-name", topic)
    at("kafka-configs", *altered, "--add-config", added, "--delete-config", deleted)
    described = at("kafka-topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3\tReplicationFactor: 1" in described
    assert "cleanup.policy=compact,delete" in described
    assert "max.message.bytes=2000" in described
    assert "retention.ms" not in described
    assert f"Topic: {topic}\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1" in described
    found = at("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", topic)
    assert "max.message.bytes=2000 sensitive=false" in found
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000, DEFAULT_CONFIG:message.max.bytes=1048588" in found

    producer = Producer({"bootstrap.servers": at.bootstrap})
    for number in range(6):
        producer.produce(topic, str(number), key=str(number), partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0
    assert sorted(at("kafka-get-offsets", "--topic", topic).split()) == [f"{topic}:{number}:2" for number in range(3)]
    sized = at("kafka-log-dirs", "--describe", "--topic-list", topic)
    (folder,) = json.loads(sized.splitlines()[-1])["brokers"][0]["logDirs"]
    assert {one["partition"] for one in folder["partitions"] if one["size"] > 0} == {f"{topic}-{n}" for n in range(3)}
    expected = tmp_path / "offsets.json"
    expected.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 1, "offset": 1}], "version": 1}))
    assert f"partition: {topic}-1\tlow_watermark: 1" in at("kafka-delete-records", "--offset-json-file", str(expected))

    at("kafka-topics", "--delete", "--topic", topic)
    assert topic not in at("kafka-topics", "--list").split()


def test_kafkas_tools_describe_a_group_and_the_broker(at: BrokerTools) -> None:
    group = f"tools-{uuid.uuid4().hex[:8]}"
    of_the_group = ("--entity-type", "groups", "--entity-name", group)
    at("kafka-configs", "--alter", *of_the_group, "--add-config", "consumer.session.timeout.ms=50000")
    found = at("kafka-configs", "--describe", *of_the_group)
    assert "consumer.session.timeout.ms=50000 sensitive=false" in found
    assert "GROUP_CONFIG:consumer.session.timeout.ms=50000" in found
    found = at("kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert "group.min.session.timeout.ms=1000 sensitive=false" in found
    assert "Cluster ID: " in at("kafka-cluster", "cluster-id")


def test_kafkas_tools_list_a_connect_group_and_change_its_configs(
    at: BrokerTools, embedded_broker: EmbeddedBroker
) -> None:
    group, session = f"connect-{uuid.uuid4().hex[:8]}", "connect.session.timeout.ms"
    of_the_group = ("--entity-type", "groups", "--entity-name", group)
    with raw_client(embedded_broker.port) as client:
        worker = Worker(client, "w0", group)
        worker.beat()
        # These tools do not know the type.
        listed = [line.split() for line in at("kafka-groups", "--list").splitlines()]
        assert [group, "Unknown", "connect"] in listed
        assert group not in at("kafka-consumer-groups", "--list", "--state", "--type"), "its members are not consumers"
        at("kafka-configs", "--alter", *of_the_group, "--add-config", f"{session}=29000")
        assert worker.beat().session_timeout_ms == 29_000
        found = at("kafka-configs", "--describe", *of_the_group)
        assert f"GROUP_CONFIG:{session}=29000, STATIC_BROKER_CONFIG:group.{session}=30000" in found
        at("kafka-configs", "--alter", *of_the_group, "--delete-config", session)
        assert worker.beat().session_timeout_ms == 30_000
