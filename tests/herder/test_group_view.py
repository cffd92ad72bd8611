"""The leader's view of its group: deferred jobs, and the worker that a name identifies."""

from dataclasses import replace

from coterie.assignors.assignor_state import Deferral
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.herder.group_view import build_group_view, find_members_by_first_matching_name, worker_id_of_url
from coterie.nouns.ids import InstanceId, WorkerUrl
from tests.herder.shown_round import ANNA, BERT, BOTH, FIRST, SECOND, round_snapshot


def test_deferred_jobs_are_shown_with_their_former_worker_and_the_remaining_delay() -> None:
    first = round_snapshot({ANNA: MemberSpec(), BERT: MemberSpec()}, assigned={ANNA: FIRST, BERT: SECOND})
    (deferred_job,) = SECOND.tasks
    second = round_snapshot({ANNA: MemberSpec(owned=FIRST)}, previous=first, unassigned={deferred_job: "it waits"})
    shown = build_group_view(
        second,
        [Deferral(jobs=SECOND, deadline_ms=5_000)],
        configured=BOTH,
        policy=RebalancePolicy(),
        next_round_in_ms=4_000,
        now_ms=1_000,
    )
    (deferred,) = shown.deferred
    assert (deferred.worker, deferred.time_left_ms, deferred.jobs) == ("bert", 4_000, SECOND)
    assert shown.unassigned == (), "deferred jobs are not listed as unassigned"
    later = round_snapshot({ANNA: MemberSpec(owned=FIRST)}, previous=second, unassigned={deferred_job: "it waits"})
    assert [worker.name for worker in later.departed] == ["bert"], "over any number of rebalances"
    assert round_snapshot({ANNA: MemberSpec(owned=BOTH)}, previous=later).departed == (), (
        "until its jobs are owned again"
    )


def test_deferred_jobs_of_an_unknown_worker_are_shown_without_a_worker_name() -> None:
    snapshot = round_snapshot({ANNA: MemberSpec(owned=FIRST)})
    waiting = [Deferral(jobs=SECOND, deadline_ms=0, instance_id=InstanceId("place"))]
    shown = build_group_view(
        snapshot, waiting, configured=BOTH, policy=RebalancePolicy(), next_round_in_ms=None, now_ms=9
    )
    (deferred,) = shown.deferred
    assert (deferred.worker, deferred.instance_id, deferred.time_left_ms) == (None, "place", 0)


def test_a_drain_without_another_worker_shows_its_reason_to_wait() -> None:
    alone = round_snapshot({ANNA: MemberSpec(owned=FIRST, is_draining=True)})
    assert [info.drain_wait_reason for info in alone.members] == ["every worker is draining"]
    views = {ANNA: MemberSpec(owned=FIRST, is_draining=True), BERT: MemberSpec()}
    with_limit = round_snapshot(views, policy=RebalancePolicy(moves_per_round_max=1))
    assert [info.drain_wait_reason for info in with_limit.members] == [
        "rebalance.max.moves.per.round is reached; more jobs move later",
        None,
    ]
    assert [info.drain_wait_reason for info in round_snapshot(views).members] == [None, None], "no limit is set"


def test_a_worker_is_found_by_address_before_name_and_by_name_before_instance_id() -> None:
    members = round_snapshot({ANNA: MemberSpec(instance_id=InstanceId("bert")), BERT: MemberSpec()}).members
    assert [info.member_id for info in find_members_by_first_matching_name(members, "bert")] == [BERT]
    assert [info.member_id for info in find_members_by_first_matching_name(members, "anna-1:8083")] == [ANNA]
    assert [
        info.member_id
        for info in find_members_by_first_matching_name(
            [replace(members[0], name="bert-1:8083"), members[1]], "bert-1:8083"
        )
    ] == [BERT]
    assert find_members_by_first_matching_name(members, "cleo") == []
    assert worker_id_of_url(WorkerUrl("http://[::1]:8083/")) == "[::1]:8083"


def test_a_members_malformed_url_is_shown_unchanged() -> None:
    for malformed in ("http://[bad:8083/", "http://\u2100x:8083/", "", "?"):
        assert worker_id_of_url(WorkerUrl(malformed)) == malformed
