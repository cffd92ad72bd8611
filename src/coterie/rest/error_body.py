"""Reads Connect's error body, ``{"error_code", "message"}``, from a response."""

import httpx


def error_message(response: httpx.Response) -> str | None:
    """The value of ``message`` in the error body of ``response``; None when the body is not JSON with a text there, for
    example when a proxy has responded."""
    try:
        body = response.json()
    except ValueError:
        return None
    message = body.get("message") if isinstance(body, dict) else None
    return message if isinstance(message, str) else None
