"""Logs librdkafka's connection failures: the first one at once, then every 30 s; and the recovery."""

import logging
import time
from typing import Any

from confluent_kafka import KafkaError

logger = logging.getLogger("coterie.kafka")

SAY_AGAIN_S = 30


class ClientLog:
    """The log of one handle of librdkafka. Called only on the thread that serves the handle."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._away = False
        self._away_since_s = self._said_at_s = 0.0
        self._refused = False

    def settings(self) -> dict[str, Any]:
        """Settings for the handle's config; without them librdkafka writes each failure to standard error."""
        return {"logger": self, "error_cb": self._on_error}

    def answered(self) -> None:
        """A broker has responded."""
        if self._away or self._refused:
            self._away = self._refused = False
            logger.info("%s: the brokers can be reached again", self._who)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """librdkafka calls this method of its logger. The message is logged as debug: librdkafka reports a lost
        connection as an error, but connects again by itself."""
        logger.debug(message, *arguments)

    def _on_away(self, error: KafkaError) -> None:
        """librdkafka calls this repeatedly while it tries to connect; logged at once, then every ``SAY_AGAIN_S``."""
        now_s = time.monotonic()
        if not self._away:
            self._away, self._away_since_s, self._said_at_s = True, now_s, now_s
            logger.warning("%s: no broker can be reached (%s); retrying", self._who, error.str())
        elif now_s - self._said_at_s >= SAY_AGAIN_S:
            self._said_at_s = now_s
            logger.warning(
                "%s: no broker could be reached for the last %.0f s; retrying", self._who, now_s - self._away_since_s
            )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._on_away(error)
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            # librdkafka retries for as long as the handle is open: log the failure only once.
            if not self._refused:
                self._refused = True
                logger.error("%s: the brokers reject this client (%s); retrying", self._who, error.str())
        elif error.fatal():
            logger.error("%s: %s", self._who, error.str())
