"""Signals that end a command as Ctrl-C does, so that it tidies up."""

import signal
from types import FrameType


def interrupt_on_signals() -> None:
    """SIGTERM and a lost terminal, too."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
