"""What a machine did lately, kept to be told when something goes wrong."""

from collections import deque


class Trace:
    """The last lines, oldest first; bounded."""

    def __init__(self, lines_max: int = 400) -> None:
        self._lines: deque[str] = deque(maxlen=lines_max)

    def add(self, now_ms: int, line: str) -> None:
        self._lines.append(f"{now_ms:>9} {line}")

    def story(self, last: int = 15) -> str:
        """The last lines as one text."""
        return "\n".join(list(self._lines)[-last:])
