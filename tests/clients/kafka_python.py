"""What tests ask of kafka-python, in a process of its own: ``python -m tests.clients.kafka_python administrate``.

As it closes, kafka-python 3.0 now and then drops a socket that it has not closed (once in 1,200 consumers on a busy
machine). Nothing of that is for whichever test runs when the socket is found.
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
"""Kafka confirms a change before its broker has heard of it."""


def ask(what: str, **arguments: str | None) -> None:
    """Have a process do ``what``, one of the functions below.

    :raises AssertionError: when it did not come to its end, with what it printed.
    """
    command = [sys.executable, "-m", __name__, what]
    asked = subprocess.run(
        command, input=json.dumps(arguments), capture_output=True, text=True, timeout=1.5 * DEADLINE_S, check=False
    )
    assert asked.returncode == 0, asked.stderr


def write_and_read(
    *,
    bootstrap: str,
    protocol: str,
    mechanism: str,
    user: str,
    password: str,
    cafile: str | None,
    topic: str,
    said: str,
) -> None:
    """Write ``said``, and find it as a member of a new group."""
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
    producer.send(topic, said.encode()).get(DEADLINE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        group_id=f"readers-{said}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=1000 * DEADLINE_S,
        **settings,
    )
    assert any(message.value == said.encode() for message in consumer)
    consumer.close()


def administrate(*, bootstrap: str, topic: str) -> None:
    """Make a topic, let it grow, set it, ask for all of that, and delete it."""
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


DOES: dict[str, Callable[..., None]] = {"write_and_read": write_and_read, "administrate": administrate}

if __name__ == "__main__":
    DOES[sys.argv[1]](**json.load(sys.stdin))
