"""The recent inputs and outputs of a machine, kept to be logged when something goes wrong."""

from collections import deque
from collections.abc import Sized
from dataclasses import fields, is_dataclass

_TEXT_LENGTH_MAX = 80
"""The greatest length of one value in :func:`brief_text`; of a longer text the end is left out."""
_NESTED_FIELDS_DEPTH = 2
"""How deep :func:`brief_text` describes the fields of dataclasses in fields of dataclasses."""


class Trace:
    """The last ``entries_max`` entries, oldest first. An entry is formatted only when :meth:`recent_text` is called.
    The number of entries is limited, but not their size: each entry should be small."""

    def __init__(self, entries_max: int = 400) -> None:
        self._entries: deque[tuple[int, object]] = deque(maxlen=entries_max)

    def add(self, now_ms: int, entry: object) -> None:
        """Add ``entry``, a text or an immutable object whose ``str`` describes it, with the time ``now_ms``."""
        self._entries.append((now_ms, entry))

    def recent_text(self, entries_count: int = 15) -> str:
        """The newest ``entries_count`` entries as one text, oldest first; each line contains the time in ms and the
        text of one entry."""
        return "\n".join(f"{now_ms:>9} {entry}" for now_ms, entry in list(self._entries)[-entries_count:])


def brief_text(event: object) -> str:
    """A short text of ``event``, a dataclass, for a trace: the name of its class and the values of its fields. Of a
    collection only the number of elements is shown, and a long value is cut. So the time and the size do not depend on
    the number of jobs, configs or records in the event, as those of ``repr`` do."""
    return _brief(event, _NESTED_FIELDS_DEPTH)


def _brief(value: object, depth: int) -> str:
    if is_dataclass(value) and not isinstance(value, type | Sized):
        name = type(value).__name__
        if depth == 0:
            return f"{name}(…)"
        shown = (f"{one.name}={_brief(getattr(value, one.name), depth - 1)}" for one in fields(value) if one.repr)
        return f"{name}({', '.join(shown)})"
    if isinstance(value, Sized) and not isinstance(value, str) and not hasattr(value, "_fields"):
        return f"<{len(value)} in {type(value).__name__}>"
    if isinstance(value, str):
        return repr(value if len(value) <= _TEXT_LENGTH_MAX else f"{value[:_TEXT_LENGTH_MAX]}…")
    text = str(value)
    return text if len(text) <= _TEXT_LENGTH_MAX else f"{text[:_TEXT_LENGTH_MAX]}…"
