"""Ends a child process when its parent has ended: the child watches a pipe whose other end only the parent holds.

The kernel closes that end however the parent ends, SIGKILL included. The child then immediately kills its whole process
group, including its JVM. No data is lost by that: data that a worker or a broker has acknowledged is durable, and the
next owner of a task repeats its batch in flight.
"""

import os
import signal
import threading

PIPE_DESCRIPTOR_VARIABLE = "COTERIE_PARENT_PIPE"
"""The environment variable with the descriptor of the pipe that a child watches."""


_watched_pipe_descriptor: list[str] = []
"""The descriptor of the pipe that this process watches, as the only element; empty if there is no pipe."""


def exit_with_parent() -> None:
    """Begin to watch the parent's pipe from a thread, if the environment names a pipe; otherwise do nothing. When the
    parent has ended, this process is killed with SIGKILL; if it leads its process group, the whole group is killed.

    Call this function before anything slow is imported.
    """
    descriptor = os.environ.pop(PIPE_DESCRIPTOR_VARIABLE, None)
    if descriptor is not None:
        _watched_pipe_descriptor.append(descriptor)
        threading.Thread(target=_kill_process_group_at_eof, args=(int(descriptor),), name="parent", daemon=True).start()


def make_pipe_inheritable_for_exec() -> dict[str, str]:
    """The environment variables to add when this process replaces itself (``exec``), so that the new process watches
    the parent's pipe too. Empty if this process watches no pipe.

    Also makes the pipe's descriptor inheritable.
    """
    if not _watched_pipe_descriptor:
        return {}
    os.set_inheritable(int(_watched_pipe_descriptor[0]), True)
    return {PIPE_DESCRIPTOR_VARIABLE: _watched_pipe_descriptor[0]}


def _kill_process_group_at_eof(descriptor: int) -> None:
    """Wait until the pipe closes. Then kill this process with SIGKILL, and with it all processes of its process group
    if it leads the group. Does not return."""
    os.set_inheritable(descriptor, False)
    while os.read(descriptor, 1):
        pass
    # A child that Coterie starts leads its own group. If it does not, the group belongs to other processes.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
