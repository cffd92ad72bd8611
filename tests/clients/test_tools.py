"""Kafka's own command-line tools for data and groups, against the embedded broker."""

import re
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.tools import ProcessResult, Tools

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.interop, pytest.mark.timeout(400)]

DEADLINE_S = 60


@pytest.fixture
def topic(embedded_broker: EmbeddedBroker) -> str:
    name = f"tools-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": embedded_broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(DEADLINE_S)
    return name


@pytest.fixture
def member(embedded_broker: EmbeddedBroker, topic: str) -> Iterator[Consumer]:
    """Another member of the console consumer's group, which reads and commits nothing."""
    consumer = Consumer(
        {
            "bootstrap.servers": embedded_broker.bootstrap_servers,
            "group.id": f"of-{topic}",
            "client.id": "onlooker",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
        }
    )
    yield consumer
    consumer.close()


def test_kafkas_tools_read_written_records_and_describe_reset_and_delete_a_group(
    tools: Tools, embedded_broker: EmbeddedBroker, topic: str, member: Consumer
) -> None:
    def run(tool: str, *arguments: str, stdin: str = "", code: int | None = 0) -> ProcessResult:
        return tools.run(
            tool, "--bootstrap-server", embedded_broker.bootstrap_servers, *arguments, stdin=stdin, code=code
        )

    group = f"of-{topic}"
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(10))
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    run("kafka-console-producer", "--topic", topic, *keyed, stdin=lines)

    performed = tools.run(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", "500", "--record-size", "100",
        "--throughput", "-1", "--producer-props", f"bootstrap.servers={embedded_broker.bootstrap_servers}", "acks=all",
    )  # fmt: skip
    assert "500 records sent" in performed.out

    consumed = run(
        "kafka-console-consumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "500"
    )
    assert "Processed a total of 500 messages" in consumed.err
    assert len(consumed.out.splitlines()) == 500

    member.subscribe([topic])
    while not member.assignment():
        member.poll(0.1)
    described = run("kafka-consumer-groups", "--describe", "--group", group, "--offsets")
    assert sum(lags(described.out, topic)) == 10
    assert "onlooker" in described.out

    refused = run(
        "kafka-consumer-groups",
        "--reset-offsets",
        "--to-earliest",
        "--topic",
        topic,
        "--group",
        group,
        "--execute",
        code=None,
    )
    assert "inactive, but the current state is Stable" in refused.out + refused.err
    member.close()
    reset = run(
        "kafka-consumer-groups", "--reset-offsets", "--to-earliest", "--topic", topic, "--group", group, "--execute"
    )
    assert sorted(re.findall(rf"{group}\s+{topic}\s+(\d)\s+(\d+)", reset.out)) == [("0", "0"), ("1", "0")]
    described = run("kafka-consumer-groups", "--describe", "--group", group, "--offsets")
    assert sum(lags(described.out, topic)) == 510
    assert "has no active members" in described.err
    deleted = run("kafka-consumer-groups", "--delete", "--group", group)
    assert f"Deletion of requested consumer groups ('{group}') was successful." in deleted.out
    assert group not in run("kafka-consumer-groups", "--list").out.split()


def lags(output: str, topic: str) -> list[int]:
    """The column LAG of each partition's line."""
    return [int(line.split()[5]) for line in output.splitlines() if line.split()[1:2] == [topic]]
