"""Kafka's error codes, under one name for all packages, and a refusal with such a code."""

from kio.schema.errors import ErrorCode

from coterie.nouns.errors import Refusal

__all__ = ("ErrorCode", "KafkaRefusal")


class KafkaRefusal(Refusal):
    """A request of Kafka's protocol is refused with ``error``. ``sentence`` is the error message for responses that
    have a field for it."""

    def __init__(self, error: ErrorCode, sentence: str | None = None) -> None:
        super().__init__(sentence or error.name)
        self.error = error
        self.sentence = sentence
