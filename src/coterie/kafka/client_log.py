"""librdkafka's words in Python's logging: that no broker answers, at once and every so often; that they do again."""

import logging
import time
from typing import Any

from confluent_kafka import KafkaError

logger = logging.getLogger("coterie.kafka")

SAY_AGAIN_S = 30


class ClientLog:
    """The voice of one handle of librdkafka. Called on the thread that serves the handle, and on no other."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._away = False
        self._away_since_s = self._said_at_s = 0.0
        self._refused = False

    def settings(self) -> dict[str, Any]:
        """Into the handle's config: without them librdkafka writes to standard error, again and again."""
        return {"logger": self, "error_cb": self._on_error}

    def answered(self) -> None:
        """A broker did what it was asked."""
        if self._away or self._refused:
            self._away = self._refused = False
            logger.info("%s: the brokers answer again", self._who)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """librdkafka calls its logger so; a lost connection is an error to it, but it connects again by itself."""
        logger.debug(message, *arguments)

    def _on_away(self, error: KafkaError) -> None:
        """Told again and again as long as it tries to connect; said at once, then every so often."""
        now_s = time.monotonic()
        if not self._away:
            self._away, self._away_since_s, self._said_at_s = True, now_s, now_s
            logger.warning("%s: no broker answers (%s); trying on", self._who, error.str())
        elif now_s - self._said_at_s >= SAY_AGAIN_S:
            self._said_at_s = now_s
            logger.warning("%s: no broker answers for %.0f s now; trying on", self._who, now_s - self._away_since_s)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._on_away(error)
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            # Refused a moment ago, it tries again for as long as it lives: said once.
            if not self._refused:
                self._refused = True
                logger.error("%s: the brokers do not let us in (%s); trying on", self._who, error.str())
        elif error.fatal():
            logger.error("%s: %s", self._who, error.str())
