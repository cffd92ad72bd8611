"""This worker's membership of its group: its assignment, its reports to the member machine, and its lease.

A worker that has read less of the config log than its group cannot start the jobs that it is assigned, and while it is
the leader, no worker is assigned a job. Such a worker abandons its membership until it has read the config log up to
the group's config offset (KAFKA-9849).
"""

from dataclasses import replace

from coterie.herder.messages import FindConfigEnd, ForPlace, Say, SetTimer
from coterie.herder.state import InRound, LostPlace, ReleasesBeforeJoin, RoundCompleted, RoundFailed, Turn
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Abandon, Assigned, MemberState, ProvedUntil, Subscribe


def begin_round(turn: Turn, state: MemberState) -> None:
    """A round is running, and this member's state in it is ``state``."""
    place = turn.herder.place
    match place.standing:
        case ReleasesBeforeJoin() as standing:
            place.standing = replace(standing, state=state)
        case _:
            place.standing = InRound(state=state, follows_loss=place.is_lost)


def release_all(turn: Turn) -> bool:
    """This worker must stop all its jobs before it joins the round; returns False when this was called before in the
    same round."""
    place = turn.herder.place
    was_known = isinstance(place.standing, ReleasesBeforeJoin)
    place.standing = ReleasesBeforeJoin(state=MemberState.PREPARING_REBALANCE, follows_loss=place.is_lost)
    if not was_known:
        place.assigned = NO_JOBS
        place.subscribed = None  # Sent again even if unchanged, because the member waits for it.
    return not was_known


def release_without_statuses(turn: Turn) -> None:
    """The statuses could not be written: the next join does not wait for them."""
    place = turn.herder.place
    match place.standing:
        case ReleasesBeforeJoin(state=state, follows_loss=follows_loss):
            place.standing = InRound(state=state, follows_loss=follows_loss)
        case _:
            pass


def take(turn: Turn, event: Assigned, *, has_failed: bool) -> None:
    """A round has ended. If it ``has_failed``, the jobs assigned to this worker stay unchanged."""
    herder, place = turn.herder, turn.herder.place
    place.standing = RoundFailed() if has_failed else RoundCompleted()
    place.member_id, place.epoch = event.member_id, event.epoch
    place.leader, place.leader_url = event.leader, event.leader_url
    was_behind = not herder.has_read(place.group_offset)
    place.group_offset, place.config_end_unverified = event.config_offset, has_failed
    if not was_behind and not herder.has_read(event.config_offset):
        _look_again(turn)
    if not has_failed:
        place.assignment_offset = event.config_offset
        if not herder.life.is_leaving:
            place.assigned = kept_of(place.assigned, event) | event.jobs


def kept_of(before: Jobs, event: Assigned) -> Jobs:
    """The jobs of ``before`` that stay assigned to the worker."""
    return NO_JOBS if event.is_whole else before - event.revoked


def lose(turn: Turn) -> None:
    place = turn.herder.place
    place.standing = LostPlace()
    place.member_id = place.leader = MemberId("")
    place.leader_url = WorkerUrl("")
    place.assigned = NO_JOBS
    place.subscribed = None  # Sent again even if unchanged, because the member waits for it.


def drop_jobs(turn: Turn) -> None:
    """The worker leaves: all its jobs stop."""
    turn.herder.place.assigned = NO_JOBS


def prove(turn: Turn, event: ProvedUntil) -> None:
    place = turn.herder.place
    if place.proved is None or event.until_ms > place.proved.until_ms:
        place.proved = event


def advance(turn: Turn) -> None:
    """Order the member to report this worker's state, when it has changed."""
    herder, place = turn.herder, turn.herder.place
    subscribe = Subscribe(config_offset=herder.config.offset, owned=herder.owned, draining=herder.life.is_draining)
    awaits_statuses = isinstance(place.standing, ReleasesBeforeJoin) and not herder.work.is_all_written
    is_out = place.is_lost and not herder.has_read(place.group_offset)
    # A worker does not join before its runtime is open; a relaunched worker is in its group already.
    may_join = herder.life.is_open or bool(place.member_id)
    if may_join and subscribe != place.subscribed and not awaits_statuses and not is_out:
        place.subscribed = subscribe
        turn.order(subscribe)


# -- a worker that has read less of the config log than its group -----------------------------------------------------


def on_behind(turn: Turn) -> None:
    """For a rebalance timeout, this worker has read less of the config log than its group. An offset that only a member
    reported must be compared with the log's end offset before it is trusted."""
    herder, place = turn.herder, turn.herder.place
    if herder.life.is_leaving or herder.has_read(place.group_offset):
        return
    if place.config_end_unverified:
        place.looks += 1
        turn.order(FindConfigEnd(purpose=ForPlace(look=place.looks)))
    else:
        _give_up(turn)


def on_end_found(turn: Turn, look: int, end: ConfigOffset | None) -> None:
    herder, place = turn.herder, turn.herder.place
    if look != place.looks or herder.life.is_leaving or herder.has_read(place.group_offset):
        return
    if end is not None and herder.has_read(end):
        text = (
            f"A member reported config offset {place.group_offset}, but the config topic ends at {end}. Check that all "
            "workers have the same config.storage.topic, and whether this topic has lost records."
        )
        turn.order(Say(text=text, warns=True))
        place.group_offset = end
        advance(turn)
    else:
        _give_up(turn)
        _look_again(turn)


def step_aside(turn: Turn, *, furthest: ConfigOffset, end: ConfigOffset) -> None:
    """Most members have read lines that this worker's config log does not contain: they read another config topic. This
    worker leaves the group and rejoins, so that it is no longer the leader."""
    place = turn.herder.place
    place.group_offset, place.config_end_unverified = furthest, False
    reason = (
        f"most members have read the config topic to offset {furthest}, but this worker's config topic ends at {end}. "
        "Check config.storage.topic: it must be the same on all workers"
    )
    turn.order(Say(text=f"This worker leaves the group and rejoins: {reason}", warns=True))
    turn.order(Abandon(reason=reason))


def _give_up(turn: Turn) -> None:
    herder = turn.herder
    if not herder.place.is_lost:
        reason = (
            f"this worker has read the config topic to offset {max(herder.config.offset, 0)} of "
            f"{herder.place.group_offset}, and no further within "
            f"rebalance.timeout.ms={herder.settings.rebalance_timeout_ms}"
        )
        turn.order(Abandon(reason=reason))


def _look_again(turn: Turn) -> None:
    turn.order(SetTimer(timer="behind", at_ms=turn.now_ms + turn.herder.settings.rebalance_timeout_ms))
