"""How a child process learns that its parent is gone: a pipe whose other end only the parent holds.

The kernel closes that end however the parent dies, SIGKILL included; the child then takes its whole process group
with it, its JVM too, at once. Nothing is lost by that: what a worker or a broker has acknowledged is durable, and a
batch in flight is replayed by the next owner.
"""

import os
import signal
import threading

PIPE_VARIABLE = "COTERIE_PARENT_PIPE"


_pipe: list[str] = []
"""The descriptor that this process watches, if there is one."""


def end_with_it() -> None:
    """Watch the parent's pipe from a thread, if there is one. Called before anything slow is imported."""
    descriptor = os.environ.pop(PIPE_VARIABLE, None)
    if descriptor is not None:
        _pipe.append(descriptor)
        threading.Thread(target=_watch, args=(int(descriptor),), name="parent", daemon=True).start()


def handed_on() -> dict[str, str]:
    """What has to stand in the environment of a process that this one becomes, so that it watches, too."""
    if not _pipe:
        return {}
    os.set_inheritable(int(_pipe[0]), True)
    return {PIPE_VARIABLE: _pipe[0]}


def _watch(descriptor: int) -> None:
    os.set_inheritable(descriptor, False)
    while os.read(descriptor, 1):
        pass
    # A child that Coterie starts leads its own group; were it otherwise, the group would be somebody else's.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
