"""Kafka's error codes, under one name for all rooms."""

from kio.schema.errors import ErrorCode

__all__ = ("ErrorCode",)
