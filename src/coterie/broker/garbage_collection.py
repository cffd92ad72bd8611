"""Python's garbage collection, so that it never stops the broker for long.

Python starts a collection when the objects that were created since the last one outnumber those that were deleted by a
threshold. While thousands of heartbeats are held, about as many objects are deleted as created: a collection is rare,
and then walks through all objects that have been created since the last one and still exist. With 10,000 members these
were up to 95,000 objects, and the broker answered no request for up to 0.4 s.
"""

import gc

OBJECTS_PER_COLLECTION = 25_000
"""A collection of so many objects takes about 15 ms."""
OBJECTS_OF_WAITING_REQUEST = 50
"""About so many objects exist as long as a request, for example a held heartbeat, has no response."""
OBJECTS_OF_ANSWERED_REQUEST = 5
"""About so many objects still exist after a request was answered at once, for example the last response to a member."""


class YoungObjectCollector:
    """Collects the young objects of the process, those of Python's generations 0 and 1, when the requests of all
    connections have created about ``OBJECTS_PER_COLLECTION`` objects."""

    def __init__(self) -> None:
        self._object_count = 0
        """About the number of objects that requests have created since the last collection."""

    def count_objects_and_collect_if_due(self, object_count: int) -> None:
        """Must be called for each request, with ``OBJECTS_OF_WAITING_REQUEST`` or ``OBJECTS_OF_ANSWERED_REQUEST``.
        Collects nothing while the process has disabled automatic collections."""
        self._object_count += object_count
        if self._object_count >= OBJECTS_PER_COLLECTION:
            self._object_count = 0
            if gc.isenabled():
                gc.collect(1)
