"""The recent inputs and outputs of a machine, kept to be logged when something goes wrong."""

from collections import deque


class Trace:
    """The last ``lines_max`` entries, oldest first. Entries are formatted only when :meth:`story` is called. Memory is
    bounded only if each entry is small."""

    def __init__(self, lines_max: int = 400) -> None:
        self._happenings: deque[tuple[int, object]] = deque(maxlen=lines_max)

    def add(self, now_ms: int, happening: object) -> None:
        """``happening``: a text, or an immutable object whose ``str`` describes it."""
        self._happenings.append((now_ms, happening))

    def story(self, last: int = 15) -> str:
        """The last entries as one text, one entry a line."""
        return "\n".join(f"{now_ms:>9} {happening}" for now_ms, happening in list(self._happenings)[-last:])
