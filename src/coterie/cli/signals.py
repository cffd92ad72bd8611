"""Signals that end a command like Ctrl-C, so that it cleans up."""

import signal
from types import FrameType


def interrupt_on_termination_signals() -> None:
    """Raise KeyboardInterrupt on SIGINT, on SIGTERM and when the terminal is closed (SIGHUP)."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, interrupt)
