"""Ports for servers that a test configures with a port, or that restart on the same port.

A port that the system chose may be reused as soon as it is closed: the next outgoing connection may get it, even one
to the stopped server itself. The ports of this module are below the system's range, and each process of the tests has a
separate block.
"""

import atexit
import itertools
import socket
from functools import cache

from coterie.cli.fleet import is_port_free

_ALL = range(20_000, 32_500)
"""Linux's own ports begin at 32,768 by default."""
_BLOCK = 250


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Consecutive ports on which no process listens; they are returned again only after the whole block."""
    ports = _block()
    while True:
        first = next(ports)
        row = range(first, first + count)
        if row[-1] // _BLOCK == first // _BLOCK and all(map(is_port_free, row)):
            for _ in row[1:]:
                next(ports)
            return row


@cache
def _block() -> "itertools.cycle[int]":
    for first in _ALL[::_BLOCK]:
        # An abstract socket address: no file, and released when this process ends for any reason.
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0coterie-tests-ports-{first}")
        except OSError:
            lock.close()
            continue
        atexit.register(lock.close)
        return itertools.cycle(range(first, first + _BLOCK))
    raise AssertionError(f"other processes of tests have all ports from {_ALL[0]} to {_ALL[-1]}")
