"""Log messages about brokers that cannot be reached."""

import logging
import time

import pytest
from confluent_kafka import KafkaError

from coterie.kafka.client_log import LOG_REPEAT_INTERVAL_S, ClientFailureLogger


def test_unreachable_brokers_are_logged_at_once_and_repeatedly_until_they_can_be_reached(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    log = ClientFailureLogger("reading topic configs")
    on_error = log.callback_settings()["error_cb"]
    with caplog.at_level(logging.INFO, logger="coterie.kafka"):
        for _ in range(7):
            on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            now_s += LOG_REPEAT_INTERVAL_S / 3
        log.on_response()
        log.on_response()
        on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "no broker can be reached; retrying",
        "no broker could be reached for the last 30 s; retrying",
        "no broker could be reached for the last 60 s; retrying",
        "the brokers can be reached again",
        "no broker can be reached; retrying",
    ]
