"""What a log reader is told of brokers that are away."""

import logging
import time

import pytest
from confluent_kafka import KafkaError

from coterie.kafka.client_log import SAY_AGAIN_S, ClientLog


def test_brokers_that_stay_away_are_told_of_at_once_and_every_so_often_until_they_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    log = ClientLog("reading topic configs")
    on_error = log.settings()["error_cb"]
    with caplog.at_level(logging.INFO, logger="coterie.kafka"):
        for _ in range(7):
            on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            now_s += SAY_AGAIN_S / 3
        log.answered()
        log.answered()
        on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "no broker can be reached (1/1 brokers are down); retrying",
        "no broker could be reached for the last 30 s; retrying",
        "no broker could be reached for the last 60 s; retrying",
        "the brokers can be reached again",
        "no broker can be reached (1/1 brokers are down); retrying",
    ]
