"""An assignor of a worker that changes its metadata, or asks for a new target assignment."""

import pytest

from coterie.member.connect.messages import HeartbeatRequest
from coterie.member.connect.state import OfferedAssignor
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import SupportedAssignor
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import SuspendMembership
from tests.member.connect.driving import A0, COOPERATIVE, OTHER, SOME, MemberDriver, accepted

OTHER_ASSIGNOR = OfferedAssignor(name="other", minimum_version=2, maximum_version=2, metadata_version=2)


def listed(metadata: bytes, reason: int = 0) -> tuple[SupportedAssignor, ...]:
    """The assignors of a heartbeat after an update."""
    return (
        SupportedAssignor(
            name="cooperative", minimum_version=0, maximum_version=3, version=2, metadata=metadata, reason=reason
        ),
    )


def answer_all(worker: MemberDriver) -> None:
    """The hold has ended: the older heartbeat is answered, and the newest one with all fields."""
    worker.answer(accepted(1), oldest=True)
    worker.answer(accepted(1, SOME, leader=OTHER, is_full=True))


def test_new_metadata_end_a_hold_and_are_sent_once(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.update_assignor(b"new")
    assert worker.count(HeartbeatRequest) == 2
    assert worker.heartbeat.client_assignors == listed(b"new")
    answer_all(worker)
    assert worker.heartbeat.client_assignors is None
    worker.fail()
    assert worker.heartbeat.client_assignors == listed(b"new"), "heartbeats with all fields have the newest metadata"


def test_without_a_hold_new_metadata_are_sent_at_once_with_nothing_else() -> None:
    worker = MemberDriver(coordinator_hold_max_ms=0)
    worker.join()
    assert worker.count(HeartbeatRequest) == 0
    worker.update_assignor(b"new", 2)
    assert (worker.heartbeat.client_assignors, worker.heartbeat.url) == (listed(b"new", 2), None)


def test_a_reason_is_in_one_accepted_heartbeat(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.update_assignor(reason=3)
    assert worker.heartbeat.client_assignors == listed(b"m", 3)
    answer_all(worker)
    for _ in range(3):
        assert worker.heartbeat.client_assignors is None
        worker.end_hold()
    worker.fail()
    assert worker.heartbeat.client_assignors == listed(b"m")


@pytest.fixture
def unheld() -> MemberDriver:
    """A member in the group that asks for no holds, between two heartbeats."""
    worker = MemberDriver(coordinator_hold_max_ms=0, assignors=(COOPERATIVE, OTHER_ASSIGNOR))
    worker.join()
    return worker


def reported(worker: MemberDriver) -> list[tuple[str, bytes, int]] | None:
    """Name, metadata and reason of each assignor in the newest heartbeat."""
    assignors = worker.heartbeat.client_assignors
    return None if assignors is None else [(one.name, one.metadata, one.reason) for one in assignors]


@pytest.mark.parametrize(
    "error",
    [None, ConnectErrorCode.STALE_REQUEST, ConnectErrorCode.NOT_COORDINATOR, ConnectErrorCode.UNKNOWN_MEMBER_ID],
)
def test_a_reason_without_an_accepted_response_is_sent_again(
    unheld: MemberDriver, error: ConnectErrorCode | None
) -> None:
    unheld.update_assignor(reason=1)
    if error is None:
        unheld.fail()
    else:
        unheld.refuse(error)
    unheld.own(NO_JOBS)
    unheld.advance_clock(100)
    assert reported(unheld) == [("cooperative", b"m", 1), ("other", b"", 0)]
    unheld.answer(accepted(1, NO_JOBS, leader=OTHER, is_full=True))
    unheld.advance_clock(1_000)
    assert reported(unheld) is None


def test_a_reason_that_is_given_while_the_same_one_is_on_its_way_is_another_request(unheld: MemberDriver) -> None:
    unheld.update_assignor(reason=1)
    unheld.update_assignor(reason=1)
    assert unheld.count(HeartbeatRequest) == 1
    unheld.answer(accepted(1))
    assert reported(unheld) == [("cooperative", b"m", 1), ("other", b"", 0)]
    unheld.answer(accepted(1))
    unheld.advance_clock(1_000)
    assert reported(unheld) is None


def test_an_update_keeps_the_reason_that_was_not_sent_yet_and_repeats_none_that_was(unheld: MemberDriver) -> None:
    unheld.update_assignor(b"first", 1)
    unheld.update_assignor(b"second", 0, name="other")
    unheld.update_assignor(b"third", 3, name="other")
    unheld.update_assignor(b"fourth", 0, name="other")
    assert reported(unheld) == [("cooperative", b"first", 1), ("other", b"", 0)]
    unheld.answer(accepted(1))
    assert reported(unheld) == [("cooperative", b"first", 0), ("other", b"fourth", 3)]


def test_a_worker_outside_of_the_group_reports_the_newest_metadata_when_it_joins(worker: MemberDriver) -> None:
    worker.update_assignor(b"before", 2)
    assert worker.sent == []
    assert worker.join().client_assignors == listed(b"before", 2)
    worker.end_hold()
    worker.refuse(ConnectErrorCode.UNKNOWN_MEMBER_ID)
    worker.update_assignor(b"after", 1)
    assert worker.sent == []
    worker.own(NO_JOBS)
    assert worker.heartbeat.client_assignors == listed(b"after", 1)


def test_before_the_first_target_a_reason_is_not_repeated(worker: MemberDriver) -> None:
    worker.own()
    worker.update_assignor(b"new", 2)
    worker.answer(accepted(0, leader=OTHER, is_full=True))
    assert worker.heartbeat.client_assignors == listed(b"new", 2)
    worker.answer(accepted(0, leader=OTHER, is_full=True))
    worker.advance_clock(1_000)
    assert worker.heartbeat.client_assignors == listed(b"new")


def test_the_announcement_of_the_next_process_has_the_newest_metadata(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.update_assignor(b"new")
    worker.feed(SuspendMembership())
    assert (worker.heartbeat.resumes, worker.heartbeat.client_assignors) == (True, listed(b"new"))
    worker.update_assignor(b"newer")
    assert worker.count(HeartbeatRequest) == 3


def test_an_order_for_an_assignor_that_the_worker_does_not_offer_is_a_bug(worker: MemberDriver) -> None:
    worker.join(A0)
    with pytest.raises(AssertionError, match="does not offer other"):
        worker.update_assignor(name="other")
