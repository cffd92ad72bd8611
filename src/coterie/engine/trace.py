"""The recent inputs and outputs of a machine, kept to be logged when something goes wrong."""

from collections import deque


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
