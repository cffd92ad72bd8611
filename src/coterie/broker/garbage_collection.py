"""Python's garbage collection, so that it never stops the broker for long.

Python starts a collection when the objects that were created since the last one outnumber those that were deleted by a
threshold. While thousands of heartbeats are held, about as many objects are deleted as created: a collection is rare,
and then walks through all objects that have been created since the last one and still exist. With 10,000 members these
were up to 95,000 objects, and the broker answered no request for up to 0.4 s.
"""

import gc

WAITING_REQUESTS_PER_COLLECTION = 500
"""A held heartbeat is about 50 objects; a collection after 500 of them takes about 15 ms."""


class YoungObjectCollector:
    """Collects the young objects of the process, those of Python's generations 0 and 1, after each
    ``WAITING_REQUESTS_PER_COLLECTION`` requests of all connections that are not answered at once. The objects of a
    request that is answered at once are deleted before they are counted."""

    def __init__(self) -> None:
        self._request_count = 0
        """The number of waiting requests since the last collection."""

    def count_waiting_request_and_collect_if_due(self) -> None:
        """Must be called for each request that is not answered at once. Collects nothing while the process has disabled
        automatic collections."""
        self._request_count += 1
        if self._request_count >= WAITING_REQUESTS_PER_COLLECTION:
            self._request_count = 0
            if gc.isenabled():
                gc.collect(1)
