"""Texts for messages: text that every encoder accepts, names that clients send, and numbers with a noun."""

_LOGGED_NAME_LENGTH_MAX = 64
"""The number of characters of a name that :func:`quoted_name` returns at most."""


def without_lone_surrogates(text: str) -> str:
    """``text`` with U+FFFD in place of each half of a surrogate pair that stands alone: no encoder accepts such a half.
    Plug-ins and other software return such texts, for example a text that was cut inside a pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def quoted_name(name: str) -> str:
    """The first :data:`_LOGGED_NAME_LENGTH_MAX` characters of ``name`` in quotes, for a log message. A client can send
    any text as a name: quoted, the name cannot imitate a log message."""
    return repr(name[:_LOGGED_NAME_LENGTH_MAX])


def count_text(count: int, noun: str) -> str:
    """``count`` and ``noun`` as text, such as "1 job" or "2 jobs". The plural of ``noun`` ends with s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
