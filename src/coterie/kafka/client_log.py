"""Logs that librdkafka can reach no broker: at once, then every 30 s while this lasts; and when a broker responds
again."""

import logging
import time
from typing import Any

from confluent_kafka import KafkaError

logger = logging.getLogger("coterie.kafka")

LOG_REPEAT_INTERVAL_S = 30
"""The interval of the log messages while no broker can be reached."""


class ClientLog:
    """The log of one handle of librdkafka (a consumer, a producer or an admin client). librdkafka calls it on the
    thread that serves the handle; :meth:`answered` may be called on another thread."""

    def __init__(self, who: str) -> None:
        """``who`` is the start of each log message: what the handle does, or its servers."""
        self._who = who
        self._away = False
        self._away_since_s = self._logged_at_s = 0.0
        self._refused = False

    def settings(self) -> dict[str, Any]:
        """The settings with which the handle calls this log. Without them librdkafka writes each failure to standard
        error."""
        return {"logger": self, "error_cb": self._on_error}

    def answered(self) -> None:
        """Call this for each response of a broker. Logs the recovery if a failure was logged before."""
        if self._away or self._refused:
            self._away = self._refused = False
            logger.info("%s: the brokers can be reached again", self._who)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a message of librdkafka, which calls this method of its logger. Always at debug level, because librdkafka
        reports each lost connection as an error, but connects again by itself."""
        logger.debug(message, *arguments)

    def _on_away(self, error: KafkaError) -> None:
        """Log that no broker can be reached, at once and then every ``LOG_REPEAT_INTERVAL_S``. librdkafka reports this
        error repeatedly while it tries to connect."""
        now_s = time.monotonic()
        if not self._away:
            self._away, self._away_since_s, self._logged_at_s = True, now_s, now_s
            logger.warning("%s: no broker can be reached (%s); retrying", self._who, error.str())
        elif now_s - self._logged_at_s >= LOG_REPEAT_INTERVAL_S:
            self._logged_at_s = now_s
            logger.warning(
                "%s: no broker could be reached for the last %.0f s; retrying", self._who, now_s - self._away_since_s
            )

    def _on_error(self, error: KafkaError) -> None:
        """librdkafka calls this with each error of the handle. Only unreachable brokers, refused logins and fatal
        errors are logged: librdkafka retries after all others."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._on_away(error)
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            # librdkafka retries for as long as the handle is open: log the failure only once.
            if not self._refused:
                self._refused = True
                logger.error("%s: the brokers reject this client (%s); retrying", self._who, error.str())
        elif error.fatal():
            logger.error("%s: %s", self._who, error.str())
