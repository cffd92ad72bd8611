"""Python's garbage collection in processes that hold many objects for as long as they run: brokers and workers."""

import gc

_WORKER_GC_THRESHOLDS = (5_000, 5, 80)
"""The arguments of ``gc.set_threshold`` in a worker: the middle generation has at most about 25,000 objects when it is
checked, and all objects are checked after two million more have been created."""
_BROKER_GC_THRESHOLDS = (5_000, 5, 2_000)
"""In a broker: all objects are checked after 2,000 collections of a `broker.garbage_collection.YoungObjectCollector`,
each of which counts as a check of the middle generation. With 10,000 members a check of all objects takes 1 s."""


def raise_worker_gc_thresholds() -> None:
    """Make the garbage collector check long-lived objects less often, in the whole process, which runs a worker.

    Ten thousand connections, or a hundred thousand jobs, are up to a million objects. With Python's default thresholds
    the collector checks all these objects again and again while others are created. Each run takes a third of a second
    or longer, and meanwhile the process sends no heartbeat.
    """
    gc.set_threshold(*_WORKER_GC_THRESHOLDS)


def raise_broker_gc_thresholds() -> None:
    """As `raise_worker_gc_thresholds`, for a process that runs a broker."""
    gc.set_threshold(*_BROKER_GC_THRESHOLDS)
