"""Logs that librdkafka can reach no broker: at once, then every 30 s while this lasts; and when a broker responds
again."""

import logging
import time
from typing import Any

from confluent_kafka import KafkaError

logger = logging.getLogger("coterie.kafka")

LOG_REPEAT_INTERVAL_S = 30
"""The interval of the log messages while no broker can be reached."""


class ClientFailureLogger:
    """Logs the failures of one handle of librdkafka (a consumer, a producer or an admin client): that no broker can be
    reached, at once and then every ``LOG_REPEAT_INTERVAL_S``; that the brokers refuse the login or the TLS connection,
    once until a broker responds; and each fatal error. Other errors are not logged, because librdkafka retries.

    librdkafka calls this object on the thread that serves the handle (:meth:`callback_settings`). The owner of the
    handle must call :meth:`on_response`, on any thread: else the recovery is not logged, nor a second refusal."""

    def __init__(self, message_prefix: str) -> None:
        """``message_prefix`` is the start of each log message: what the handle does, or its servers."""
        self._message_prefix = message_prefix
        self._are_brokers_unreachable = False
        self._unreachable_since_s = self._logged_at_s = 0.0
        self._is_rejection_logged = False

    def callback_settings(self) -> dict[str, Any]:
        """The settings with which the handle calls this object. Without them librdkafka writes each failure to standard
        error."""
        return {"logger": self, "error_cb": self._on_error}

    def on_response(self) -> None:
        """Call this for each response of a broker. Logs the recovery if a failure was logged before."""
        if self._are_brokers_unreachable or self._is_rejection_logged:
            self._are_brokers_unreachable = self._is_rejection_logged = False
            logger.info("%s: the brokers can be reached again", self._message_prefix)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a message of librdkafka, which calls this method of its logger. Always at debug level, because librdkafka
        reports each lost connection as an error, but connects again by itself."""
        logger.debug(message, *arguments)

    def _on_brokers_unreachable(self) -> None:
        """Log that no broker can be reached, at once and then every ``LOG_REPEAT_INTERVAL_S``. librdkafka reports this
        error repeatedly while it tries to connect. The numbers in its text, as in "0/2 brokers are down", may
        contradict the message, and are not logged."""
        now_s = time.monotonic()
        if not self._are_brokers_unreachable:
            self._are_brokers_unreachable, self._unreachable_since_s, self._logged_at_s = True, now_s, now_s
            logger.warning("%s: no broker can be reached; retrying", self._message_prefix)
        elif now_s - self._logged_at_s >= LOG_REPEAT_INTERVAL_S:
            self._logged_at_s = now_s
            logger.warning(
                "%s: no broker could be reached for the last %.0f s; retrying",
                self._message_prefix,
                now_s - self._unreachable_since_s,
            )

    def _on_error(self, error: KafkaError) -> None:
        """librdkafka calls this with each error of the handle. Only unreachable brokers, refused logins and fatal
        errors are logged: librdkafka retries after all others."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._on_brokers_unreachable()
        elif error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            # librdkafka retries for as long as the handle is open: log the failure only once.
            if not self._is_rejection_logged:
                self._is_rejection_logged = True
                logger.error(
                    "%s: the login at the brokers, or the TLS connection to them, has failed (%s); the client retries. "
                    "Check security.protocol, sasl.username, sasl.password and the files with certificates",
                    self._message_prefix,
                    error.str(),
                )
        elif error.fatal():
            logger.error(
                "%s: the Kafka client has failed (%s); restart this process", self._message_prefix, error.str()
            )
