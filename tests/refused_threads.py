"""Lets the system start no further thread of one name, as at the limit of threads."""

import threading

import pytest


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let each start of a thread with this ``name`` fail until ``monkeypatch`` is undone."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
