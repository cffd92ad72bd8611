"""What librdkafka says, in Python's logging: a line when no broker answers, one when they do again."""

import logging
from typing import Any

from confluent_kafka import KafkaError

logger = logging.getLogger("coterie.kafka")


class ClientLog:
    """The voice of one handle of librdkafka. Called on the thread that serves the handle, and on no other."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._away = False
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

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._away:
            self._away = True
            logger.warning("%s: no broker answers (%s); trying on", self._who, error.str())
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            # Refused a moment ago, it tries again for as long as it lives: said once.
            if not self._refused:
                self._refused = True
                logger.error("%s: the brokers do not let us in (%s); trying on", self._who, error.str())
        elif error.fatal():
            logger.error("%s: %s", self._who, error.str())
