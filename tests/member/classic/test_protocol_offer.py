"""Which protocols a member offers, and what it logs about the selected protocol."""

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
    MembershipLost,
    Rejoin,
    StopAllBeforeJoin,
)
from coterie.wire.connect import ConnectProtocol
from coterie.wire.connect_bytes import decode_version_and_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import MemberDriver, joined, synced

EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol


CLAIMS = Jobs(tasks=frozenset({ConnectorTaskId(ConnectorName("a-b"), 7)}))


# -- the offered protocols --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "protocol_names"),
    [
        ("eager", ["default"]),
        ("compatible", ["compatible", "default"]),
        ("sessioned", ["sessioned", "compatible", "default"]),
        ("static", ["static", "sessioned", "compatible", "default"]),
    ],
)
def test_a_worker_supports_its_protocol_and_all_older_ones_newest_first(
    setting: str, protocol_names: list[str]
) -> None:
    worker = MemberDriver(offers=ConnectProtocol.from_setting(setting))
    worker.set_worker_state()
    request = worker.sent(JoinRequest)
    assert request is not None
    assert [name for name, _ in request.protocols] == protocol_names
    assert [decode_version_and_metadata(data)[0] for _, data in request.protocols] == list(
        range(len(protocol_names) - 1, -1, -1)
    )


@pytest.mark.parametrize("claims", [None, NO_JOBS, CLAIMS])
def test_only_static_metadata_contains_claims(claims: Jobs | None) -> None:
    worker = MemberDriver(claims=claims)
    worker.set_worker_state()
    request = worker.sent(JoinRequest)
    assert request is not None
    newest, *older = [decode_version_and_metadata(data)[1] for _, data in request.protocols]
    if claims is None:
        assert (newest.static_connectors, newest.static_tasks) == (None, None)
    else:
        assert (newest.static_connectors, newest.static_tasks) == (claims.connectors, claims.tasks)
    assert all(
        older_metadata.static_connectors is None and older_metadata.static_tasks is None for older_metadata in older
    )


def test_a_change_of_the_group_protocol_is_logged_once() -> None:
    worker = MemberDriver(claims=CLAIMS)
    for generation, protocol in enumerate([STATIC, STATIC, SESSIONED, SESSIONED, STATIC], start=1):
        worker.settle(NO_JOBS, protocol=protocol, generation=generation)
        worker.feed(Rejoin(reason="test"))
    assert worker.log_infos == ["The group uses connect.protocol static", "The group uses connect.protocol static"]
    assert worker.log_warnings == [
        "The group uses connect.protocol sessioned, not static, because at least one member supports no newer version; "
        "static.connectors and static.tasks are ignored"
    ]


# -- protocol selections that a member missed -------------------------------------------------------------------------


def protocol_names(worker: MemberDriver) -> list[str]:
    request = worker.sent(JoinRequest)
    assert request is not None
    return [name for name, _ in request.protocols]


@pytest.mark.parametrize("broken", [True, False], ids=["connection lost", "no response"])
def test_a_worker_with_jobs_that_may_have_missed_a_protocol_selection_does_not_offer_eager(
    worker: MemberDriver, broken: bool
) -> None:
    """The lost response may belong to an eager rebalance: then the leader assumes that this worker stopped its jobs."""
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="test"))
    if broken:
        worker.fail(JoinRequest)
        worker.advance_clock(1_000)
    else:
        lost = worker.sent(JoinRequest)
        while worker.sent(JoinRequest) is lost:
            worker.advance_clock(1_000)
            worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert protocol_names(worker) == ["static", "sessioned", "compatible"]


def test_after_a_refused_join_without_eager_a_member_stops_everything_and_offers_eager(
    worker: MemberDriver,
) -> None:
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="test"))
    worker.fail(JoinRequest)
    worker.advance_clock(1_000)
    worker.herder_events.clear()
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.inconsistent_group_protocol))
    assert worker.sent(JoinRequest) is None
    assert worker.take_events(StopAllBeforeJoin) == [StopAllBeforeJoin()]
    worker.set_worker_state(NO_JOBS)
    assert protocol_names(worker) == ["static", "sessioned", "compatible", "default"]


def test_a_group_that_accepts_a_join_without_eager_is_offered_eager_in_the_next_join(worker: MemberDriver) -> None:
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="test"))
    worker.fail(JoinRequest)
    worker.advance_clock(1_000)
    worker.answer(JoinRequest, joined(3, protocol=STATIC))
    worker.answer(SyncRequest, synced(protocol=STATIC))
    assert protocol_names(worker) == ["static", "sessioned", "compatible", "default"]
    worker.answer(JoinRequest, joined(4, protocol=STATIC))
    worker.answer(SyncRequest, synced(protocol=STATIC))
    assert worker.sent(JoinRequest) is None
    assert not worker.take_events(MembershipLost)


def test_a_worker_without_jobs_offers_all_protocols_even_after_a_missed_selection(worker: MemberDriver) -> None:
    worker.settle(NO_JOBS, protocol=STATIC)
    worker.feed(Rejoin(reason="test"))
    worker.fail(JoinRequest)
    worker.advance_clock(1_000)
    assert protocol_names(worker) == ["static", "sessioned", "compatible", "default"]


def test_a_static_member_paused_for_a_rebalance_timeout_may_have_missed_a_protocol_selection() -> None:
    worker = MemberDriver(InstanceId("one"), rebalance_timeout_ms=2_000)
    worker.set_worker_state()
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    worker.settle(protocol=STATIC)
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.now_ms += 2_500  # The process is paused for less than its session.
    worker.feed(Rejoin(reason="test"))
    assert protocol_names(worker) == ["static", "sessioned", "compatible"]
