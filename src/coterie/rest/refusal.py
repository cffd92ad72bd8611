"""Connect's form of an error, ``{"error_code", "message"}``, as whoever asked reads it."""

import httpx


def message_in(response: httpx.Response) -> str | None:
    """What a worker says is wrong; None when it is not in that form, as from a proxy."""
    try:
        body = response.json()
    except ValueError:
        return None
    message = body.get("message") if isinstance(body, dict) else None
    return message if isinstance(message, str) else None
