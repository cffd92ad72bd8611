"""The guard: a small process that ends every process group of a parent which is gone.

Children watch their parent's pipe themselves (`parent`); the guard is for those that cannot, because they are stopped
(SIGSTOP) or because only their JVM is left. It reads ``+<group>`` and ``-<group>``, a line each, from its standard
input, and kills the groups it was told of when that ends. It imports nothing of Coterie and is run as a plain file.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
