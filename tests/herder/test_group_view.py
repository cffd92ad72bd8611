"""What the leader tells of its group: whose jobs wait, who is meant by a name."""

from dataclasses import replace

from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Waiting
from coterie.herder.group_view import called, view, worker_id_in
from coterie.nouns.ids import InstanceId, WorkerUrl
from tests.herder.shown_round import ANNA, BERT, BOTH, FIRST, SECOND, dealt


def test_jobs_that_wait_are_told_of_with_who_had_them_and_what_is_left() -> None:
    first = dealt({ANNA: MemberView(), BERT: MemberView()}, assigned={ANNA: FIRST, BERT: SECOND})
    (waits,) = SECOND.tasks
    second = dealt({ANNA: MemberView(owned=FIRST)}, former=first, unassigned={waits: "it waits"})
    shown = view(
        second,
        [Waiting(jobs=SECOND, deadline_ms=5_000)],
        configured=BOTH,
        policy=Policy(),
        next_round_ms=4_000,
        now_ms=1_000,
    )
    (deferred,) = shown.deferred
    assert (deferred.worker, deferred.left_ms, deferred.jobs) == ("bert", 4_000, SECOND)
    assert shown.unassigned == (), "what waits is not without a hope"
    later = dealt({ANNA: MemberView(owned=FIRST)}, former=second, unassigned={waits: "it waits"})
    assert [one.name for one in later.departed] == ["bert"], "over any number of rounds"
    assert dealt({ANNA: MemberView(owned=BOTH)}, former=later).departed == (), "until they have somebody"


def test_jobs_of_whom_this_leader_never_knew_wait_for_nobody_by_name() -> None:
    known = dealt({ANNA: MemberView(owned=FIRST)})
    waiting = [Waiting(jobs=SECOND, deadline_ms=0, instance_id=InstanceId("place"))]
    shown = view(known, waiting, configured=BOTH, policy=Policy(), next_round_ms=None, now_ms=9)
    (deferred,) = shown.deferred
    assert (deferred.worker, deferred.instance_id, deferred.left_ms) == (None, "place", 0)


def test_a_drain_that_nobody_can_help_says_why() -> None:
    alone = dealt({ANNA: MemberView(owned=FIRST, draining=True)})
    assert [info.waits for info in alone.members] == ["every worker is draining"]
    helped = dealt({ANNA: MemberView(owned=FIRST, draining=True), BERT: MemberView()})
    assert [info.waits for info in helped.members] == [
        "rebalance.max.moves.per.round is reached; more jobs move later",
        None,
    ]


def test_an_address_goes_before_a_name_and_a_name_before_an_instance() -> None:
    members = dealt({ANNA: MemberView(instance_id=InstanceId("bert")), BERT: MemberView()}).members
    assert [info.member_id for info in called(members, "bert")] == [BERT]
    assert [info.member_id for info in called(members, "anna-1:8083")] == [ANNA]
    assert [
        info.member_id for info in called([replace(members[0], name="bert-1:8083"), members[1]], "bert-1:8083")
    ] == [BERT]
    assert called(members, "cleo") == []
    assert worker_id_in(WorkerUrl("http://[::1]:8083/")) == "[::1]:8083"


def test_what_a_member_gives_for_its_address_is_shown_as_it_is_when_it_is_none() -> None:
    for nonsense in ("http://[bad:8083/", "http://\u2100x:8083/", "", "?"):
        assert worker_id_in(WorkerUrl(nonsense)) == nonsense
