"""Python's garbage collection in processes that hold many objects for as long as they run: brokers and workers."""

import gc

_GC_THRESHOLDS = (5_000, 5, 80)
"""The arguments of ``gc.set_threshold``: the middle generation has at most about 25,000 objects when it is checked,
and all objects are checked after two million more have been created."""


def raise_gc_thresholds() -> None:
    """Make the garbage collector check long-lived objects less often, in the whole process.

    Ten thousand connections, or a hundred thousand jobs, are up to a million objects. With Python's default thresholds
    the collector checks all these objects again and again while others are created. Each run takes a third of a second
    or longer, and meanwhile the process sends no heartbeat.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
