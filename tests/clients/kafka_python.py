"""Calls of kafka-python for tests, in a separate process: ``python -m tests.clients.kafka_python administrate``.

As it closes, kafka-python 3.0 now and then drops a socket that it has not closed (once in 1,200 consumers on a busy
machine). That warning must not fail the test that runs when the socket is found.
"""

import json
import ssl
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.processes.cluster import until

DEADLINE_S = 60
CONFIRMED_S = 30
"""Time limit for a change to be visible: Kafka confirms it before its broker has the new metadata."""


def ask(what: str, **arguments: str | None) -> None:
    """Run ``what``, one of the functions below, in a process.

    :raises AssertionError: when it failed, with its standard error.
    """
    command = [sys.executable, "-m", __name__, what]
    process = subprocess.run(
        command, input=json.dumps(arguments), capture_output=True, text=True, timeout=1.5 * DEADLINE_S, check=False
    )
    assert process.returncode == 0, process.stderr


def write_and_read(
    *,
    bootstrap: str,
    protocol: str,
    mechanism: str,
    user: str,
    password: str,
    cafile: str | None,
    topic: str,
    sent_value: str,
) -> None:
    """Write the value ``sent_value``, and read it as a member of a new group."""
    import kafka

    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
        "ssl_context": ssl.create_default_context(cafile=cafile) if cafile is not None else None,
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send(topic, sent_value.encode()).get(DEADLINE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        group_id=f"readers-{sent_value}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=1000 * DEADLINE_S,
        **settings,
    )
    assert any(message.value == sent_value.encode() for message in consumer)
    consumer.close()


def administrate(*, bootstrap: str, topic: str) -> None:
    """Create a topic, add partitions, change its config, read all of that back, and delete the topic."""
    from kafka import admin

    client = admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    client.create_topics([admin.NewTopic(topic, 2, 1)])
    client.create_partitions({topic: admin.NewPartitions(3)})
    until(
        lambda: len(client.describe_topics([topic])[0]["partitions"]) == 3,
        within_s=CONFIRMED_S,
        what=f"{topic} has three partitions",
    )
    resource = admin.ConfigResource("TOPIC", topic, {"retention.ms": "5"})
    client.alter_configs([resource])
    until(
        lambda: "retention.ms" in client.describe_configs([resource])["topic"][topic],
        within_s=CONFIRMED_S,
        what=f"{topic} has its retention",
    )
    client.delete_topics([topic])
    client.close()


FUNCTIONS: dict[str, Callable[..., None]] = {"write_and_read": write_and_read, "administrate": administrate}

if __name__ == "__main__":
    FUNCTIONS[sys.argv[1]](**json.load(sys.stdin))
