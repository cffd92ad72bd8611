from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.groups.classic.state import Limits, Phase
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import Play


def test_an_id_that_is_out_takes_nobodys_room(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(group_size_max=2))
    play.settle(1)
    waiting = play.join(knows_ids=True)
    assert play.error(waiting) is ErrorCode.member_id_required
    second = play.join()
    play.join("m1")
    # Both came; the id that is out comes too late.
    assert play.waits(second), "the join phase waits for the id that is out"
    assert play.error(play.join("m2")) is ErrorCode.group_max_size_reached
    assert not play.waits(second)


def test_while_the_group_joins_the_first_to_rejoin_have_room(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits())
    play.settle(3)
    play.limits = Limits(group_size_max=2)
    play.restart()
    assert play.phase is Phase.PREPARING_REBALANCE, "it has become too large while its coordinator was away"
    third, first = play.join("m3"), play.join("m1")
    assert play.error(play.join("m2")) is ErrorCode.group_max_size_reached
    assert {one.member_id for one in play.joined(first).members + play.joined(third).members} == {"m1", "m3"}


def test_only_so_many_ids_are_out_at_once(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(pending_members_max=2))
    for _ in range(2):
        assert play.error(play.join(knows_ids=True)) is ErrorCode.member_id_required
    assert play.error(play.join(knows_ids=True)) is ErrorCode.coordinator_load_in_progress, "clients try again"
    play.join("m1")
    assert play.error(play.join(knows_ids=True)) is ErrorCode.member_id_required
    play.wait(10_000)
    assert play.error(play.join(knows_ids=True)) is ErrorCode.member_id_required


def test_members_may_say_so_much_of_themselves_together(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(generation_size_max=20))
    play.join(protocols=(("v1", b"8 bytes."),))
    play.join(protocols=(("v1", b"8 bytes."),))
    play.wait(6_000)
    play.sync("m2")
    play.sync("m1")
    assert play.error(play.join(protocols=(("v1", b""),))) is ErrorCode.group_max_size_reached
    assert play.error(play.join("m2", protocols=(("v1", b"9 bytes.."),))) is ErrorCode.group_max_size_reached
    assert play.phase is Phase.STABLE
    assert play.heartbeat("m2") is ErrorCode.none, "it may go on as it is"
    assert play.waits(play.join("m2", protocols=(("v1", b"7 bytes"),)))


def test_a_leader_may_assign_so_much(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(generation_size_max=30))
    play.join()
    play.join()
    play.wait(6_000)
    follower = play.sync("m2")
    leader = play.sync("m1", assignments={"m1": b"x" * 30, "m2": b"x"})
    assert (play.error(follower), play.error(leader)) == 2 * (ErrorCode.unknown_server_error,)
    assert play.phase is Phase.PREPARING_REBALANCE


def test_whoever_leaves_before_it_joined_leaves_nothing_behind(play: "Play") -> None:
    play.join(knows_ids=True)
    assert play.leave("m1").members == (("m1", ErrorCode.none),)
    assert play.group.is_unheard_of
    assert play.timers.next_at_ms() is None
