"""Python's garbage collection in the broker: young objects are collected after a number of requests."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from coterie.broker.garbage_collection import REQUESTS_PER_COLLECTION, YoungObjectCollector
from tests.broker.conftest import ThreadedBroker, raw_client
from tests.broker.groups.member import Member

INIT_PRODUCER_ID = 22


class Cycle:
    """An object that only the garbage collector deletes."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def cycle() -> Iterator["weakref.ref[Cycle]"]:
    """A young object without users, in a process whose collector starts no collection by itself."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000, *thresholds[1:])
    yield weakref.ref(Cycle())
    gc.set_threshold(*thresholds)


def test_a_young_object_is_collected_after_a_number_of_requests(cycle: "weakref.ref[Cycle]") -> None:
    collector = YoungObjectCollector()
    for _ in range(REQUESTS_PER_COLLECTION - 1):
        collector.count_request_and_collect_if_due()
    assert cycle() is not None
    collector.count_request_and_collect_if_due()
    assert cycle() is None


def test_nothing_is_collected_while_automatic_collections_are_disabled(cycle: "weakref.ref[Cycle]") -> None:
    collector = YoungObjectCollector()
    gc.disable()
    try:
        for _ in range(REQUESTS_PER_COLLECTION):
            collector.count_request_and_collect_if_due()
        assert cycle() is not None
    finally:
        gc.enable()


def test_requests_that_wait_for_the_log_are_counted_over_all_connections(
    broker: ThreadedBroker, cycle: "weakref.ref[Cycle]"
) -> None:
    for count in (REQUESTS_PER_COLLECTION - 1, 1):
        assert cycle() is not None
        with raw_client(broker.port) as client:
            for _ in range(count):
                client.ask(INIT_PRODUCER_ID, 0, transactional_id=None, transaction_timeout=1_000)
    assert cycle() is None


def test_requests_that_are_answered_at_once_are_counted(broker: ThreadedBroker, cycle: "weakref.ref[Cycle]") -> None:
    with raw_client(broker.port) as client:
        member = Member(client)
        member.join()
        for _ in range(REQUESTS_PER_COLLECTION // 2):
            member.beat()
        assert cycle() is not None
        for _ in range(REQUESTS_PER_COLLECTION // 2):
            member.beat()
    assert cycle() is None
