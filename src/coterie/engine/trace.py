"""What a machine did lately, kept to be told when something goes wrong."""

from collections import deque


class Trace:
    """The last happenings, oldest first; bounded, as long as each of them is small. Each is put into words only when
    the story is asked for."""

    def __init__(self, lines_max: int = 400) -> None:
        self._happenings: deque[tuple[int, object]] = deque(maxlen=lines_max)

    def add(self, now_ms: int, happening: object) -> None:
        """``happening``: a line, or anything that does not change and whose ``str`` says what it is."""
        self._happenings.append((now_ms, happening))

    def story(self, last: int = 15) -> str:
        """The last lines as one text."""
        return "\n".join(f"{now_ms:>9} {happening}" for now_ms, happening in list(self._happenings)[-last:])
