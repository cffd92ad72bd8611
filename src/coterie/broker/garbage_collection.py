"""Python's garbage collection, so that it never stops the broker for long.

Python starts a collection when the objects that were created since the last one outnumber those that were deleted by a
threshold. While thousands of heartbeats are held, about as many objects are deleted as created: a collection is rare,
and then walks through all objects that have been created since the last one and still exist. With 10,000 members these
were up to 95,000 objects, and the broker answered no request for up to 0.4 s.
"""

import gc

REQUESTS_PER_COLLECTION = 300
"""The number of requests from one collection to the next. A held heartbeat is about 50 objects, so a collection walks
through about 15,000."""


class YoungObjectCollector:
    """Collects the young objects of the process, those of Python's generations 0 and 1, after each
    ``REQUESTS_PER_COLLECTION`` requests of all connections."""

    def __init__(self) -> None:
        self._request_count = 0
        """The number of requests since the last collection."""

    def count_request_and_collect_if_due(self) -> None:
        """Must be called for each request that was read. Collects nothing while the process has disabled automatic
        collections."""
        self._request_count += 1
        if self._request_count >= REQUESTS_PER_COLLECTION:
            self._request_count = 0
            if gc.isenabled():
                gc.collect(1)
