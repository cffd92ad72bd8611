"""Times of the wall clock as text."""

from datetime import UTC, datetime


def instant_text(at_ms: int) -> str:
    """The time ``at_ms``, in milliseconds since the Unix epoch, in ISO 8601 and UTC, as ``Instant.toString()`` of Java
    writes it: without a fraction if the milliseconds are 0."""
    fraction = f".{at_ms % 1000:03}" if at_ms % 1000 else ""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
