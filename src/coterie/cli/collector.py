"""Python's collector in a process that holds a great many objects for as long as it runs: a broker, a worker."""

import gc

_THRESHOLDS = (20_000, 10, 10)


def collect_seldom() -> None:
    """Let it walk what lives long less often; this is the whole process's.

    Ten thousand connections, or a hundred thousand jobs, are up to a million objects. By default all of them are walked
    again and again while more come, a third of a second and longer at a time, and no heartbeat goes out meanwhile.
    """
    gc.set_threshold(*_THRESHOLDS)
