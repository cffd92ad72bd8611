"""Reads Connect's error body, ``{"error_code", "message"}``, from a response."""

import httpx


def message_in(response: httpx.Response) -> str | None:
    """The error message of a worker's response; None when the body has another form, for example from a proxy."""
    try:
        body = response.json()
    except ValueError:
        return None
    message = body.get("message") if isinstance(body, dict) else None
    return message if isinstance(message, str) else None
