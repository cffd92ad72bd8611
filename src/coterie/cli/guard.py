"""The guard: a small process that ends the process groups of its parent's children once the parent has ended.

Children watch their parent's pipe themselves (`parent`). The guard is for children that cannot, because they are
stopped (SIGSTOP) or because only their JVM still runs. It reads lines ``+<group>`` and ``-<group>`` from its standard
input. When the input ends, it kills the groups that were added and not removed. It imports nothing of Coterie and is
run as a plain file.
"""

import contextlib
import os
import signal
import sys


def kill_listed_process_groups_at_eof() -> None:
    """Read lines ``+<process group>`` and ``-<process group>`` until the standard input ends. Then kill the process
    groups that were added and not removed. Ignore SIGINT, SIGTERM and SIGHUP."""
    for ignored_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored_signal, signal.SIG_IGN)
    process_groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            process_groups.add(int(line[1:]))
        else:
            process_groups.discard(int(line[1:]))
    for process_group in process_groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process_group, signal.SIGKILL)


if __name__ == "__main__":
    kill_listed_process_groups_at_eof()
