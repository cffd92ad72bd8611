"""Which protocols a member offers, and what it logs of its group's choice."""

import pytest

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    SyncRequest,
)
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import (
    Lost,
    MustReleaseAll,
    Rejoin,
)
from coterie.wire.connect import ConnectProtocol
from coterie.wire.connect_bytes import decode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import Worker, joined, synced

EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol


CLAIMS = Jobs(tasks=frozenset({ConnectorTaskId(ConnectorName("a-b"), 7)}))


# -- what is offered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("eager", ["default"]),
        ("compatible", ["compatible", "default"]),
        ("sessioned", ["sessioned", "compatible", "default"]),
        ("static", ["static", "sessioned", "compatible", "default"]),
    ],
)
def test_a_worker_offers_its_protocol_and_all_older_ones_the_newest_first(setting: str, names: list[str]) -> None:
    worker = Worker(offers=ConnectProtocol.named(setting))
    worker.subscribe()
    request = worker.sent(JoinRequest)
    assert request is not None
    assert [name for name, _ in request.protocols] == names
    assert [decode_metadata(data)[0] for _, data in request.protocols] == list(range(len(names) - 1, -1, -1))


@pytest.mark.parametrize("claims", [None, NO_JOBS, CLAIMS])
def test_claims_are_said_in_static_alone(claims: Jobs | None) -> None:
    worker = Worker(claims=claims)
    worker.subscribe()
    request = worker.sent(JoinRequest)
    assert request is not None
    newest, *older = [decode_metadata(data)[1] for _, data in request.protocols]
    if claims is None:
        assert (newest.static_connectors, newest.static_tasks) == (None, None)
    else:
        assert (newest.static_connectors, newest.static_tasks) == (claims.connectors, claims.tasks)
    assert all(one.static_connectors is None and one.static_tasks is None for one in older)


def test_a_change_of_what_the_group_speaks_is_told_once() -> None:
    worker = Worker(claims=CLAIMS)
    for generation, protocol in enumerate([STATIC, STATIC, SESSIONED, SESSIONED, STATIC], start=1):
        worker.settle(NO_JOBS, protocol=protocol, generation=generation)
        worker.feed(Rejoin(reason="a wish"))
    assert worker.said == ["The group uses connect.protocol static", "The group uses connect.protocol static"]
    assert worker.warned == [
        "The group uses connect.protocol sessioned, not static, because at least one member supports no newer version; "
        "static.connectors and static.tasks are ignored"
    ]


# -- votes that were missed -------------------------------------------------------------------------------------------


def names(worker: Worker) -> list[str]:
    request = worker.sent(JoinRequest)
    assert request is not None
    return [name for name, _ in request.protocols]


@pytest.mark.parametrize("broken", [True, False], ids=["broken off", "never answered"])
def test_a_worker_at_work_that_may_have_missed_a_vote_offers_no_eager(worker: Worker, broken: bool) -> None:
    """The lost answer may have been of an eager round: then the leader takes this worker to have stopped by now."""
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="a wish"))
    if broken:
        worker.fail(JoinRequest)
        worker.pass_time(1_000)
    else:
        lost = worker.sent(JoinRequest)
        while worker.sent(JoinRequest) is lost:
            worker.pass_time(1_000)
            worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert names(worker) == ["static", "sessioned", "compatible"]


def test_a_group_that_cannot_do_without_eager_refuses_that_and_then_everything_stops_first(worker: Worker) -> None:
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="a wish"))
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.told.clear()
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.inconsistent_group_protocol))
    assert worker.sent(JoinRequest) is None
    assert worker.heard(MustReleaseAll) == [MustReleaseAll()]
    worker.subscribe(NO_JOBS)
    assert names(worker) == ["static", "sessioned", "compatible", "default"]


def test_any_other_group_takes_it_and_is_offered_eager_again_in_a_round_of_its_own(worker: Worker) -> None:
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="a wish"))
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.answer(JoinRequest, joined(3, protocol=STATIC))
    worker.answer(SyncRequest, synced(protocol=STATIC))
    assert names(worker) == ["static", "sessioned", "compatible", "default"]
    worker.answer(JoinRequest, joined(4, protocol=STATIC))
    worker.answer(SyncRequest, synced(protocol=STATIC))
    assert worker.sent(JoinRequest) is None
    assert not worker.heard(Lost)


def test_a_worker_without_work_offers_everything_whatever_it_has_missed(worker: Worker) -> None:
    worker.settle(NO_JOBS, protocol=STATIC)
    worker.feed(Rejoin(reason="a wish"))
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    assert names(worker) == ["static", "sessioned", "compatible", "default"]


def test_a_static_member_that_was_away_for_a_whole_rebalance_timeout_may_have_missed_a_vote() -> None:
    worker = Worker(InstanceId("one"), rebalance_timeout_ms=2_000)
    worker.subscribe()
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    worker.settle(protocol=STATIC)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.now_ms += 2_500  # Paused; its session is longer.
    worker.feed(Rejoin(reason="a wish"))
    assert names(worker) == ["static", "sessioned", "compatible"]
