"""When a task is restarted whose query or start has failed (``errors.restart.*``)."""

from dataclasses import dataclass
from zlib import crc32

from coterie.engine.backoff import doubled_delay_ms

FIRST_DELAY_MS = 200
"""The wait before the first restart. It doubles with each further one, up to :attr:`RestartPolicy.delay_max_ms`."""


def jittered_delay_ms(delay_ms: int, key: str) -> int:
    """``delay_ms``, shortened by at most a fifth, as in Kafka's exponential backoff (KIP-580). ``key`` alone determines
    by how much: so tasks that failed together, with different keys, are not all restarted at the same time."""
    # The hash of a str differs between processes, and a random number between two runs of the simulator.
    return delay_ms - crc32(key.encode()) % (delay_ms // 5 + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often, and after which waits, a task is restarted whose query or start fails without progress in between.
    ``restarts_max`` -1 means without limit, 0 never."""

    restarts_max: int = 3
    """How many restarts follow each other without progress, until the task is FAILED; -1 means without limit."""
    delay_max_ms: int = 60_000
    """The longest wait before a restart."""

    def delay_ms(self, failures: int) -> int | None:
        """The wait, in ms, before the restart that follows ``failures`` (1 or more) without progress in between. None:
        the task is FAILED."""
        if 0 <= self.restarts_max < failures:
            return None
        return doubled_delay_ms(FIRST_DELAY_MS, failures - 1, self.delay_max_ms)


DEFAULT_RESTART_POLICY = RestartPolicy()
