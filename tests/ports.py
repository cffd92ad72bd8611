"""Ports for servers that are told where to listen, or that come back where they were.

A port that the system chose is anybody's as soon as it is closed: the next outgoing connection may get it, even one
that looks for the very server that is away. These here lie below the system's own, and each process of the tests has a
block of them that no other has.
"""

import atexit
import itertools
import socket
from functools import cache

from coterie.cli.fleet import is_free

_ALL = range(20_000, 32_500)
"""Linux's own begin at 32,768, if nobody has set them otherwise."""
_BLOCK = 250


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Ports in a row where nobody listens; they come again only when all of the block have been given."""
    ports = _block()
    while True:
        first = next(ports)
        row = range(first, first + count)
        if row[-1] // _BLOCK == first // _BLOCK and all(map(is_free, row)):
            for _ in row[1:]:
                next(ports)
            return row


@cache
def _block() -> "itertools.cycle[int]":
    for first in _ALL[::_BLOCK]:
        # The name of no file, which is free again when this process has ended, however it ends.
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0coterie-tests-ports-{first}")
        except OSError:
            lock.close()
            continue
        atexit.register(lock.close)
        return itertools.cycle(range(first, first + _BLOCK))
    raise AssertionError(f"other processes of tests have all ports from {_ALL[0]} to {_ALL[-1]}")
