"""The fence around the lines that only the leader may write: configs, deletions, task configs and session keys.

A worker that was paused (SIGSTOP, a long garbage collection) may be replaced as the leader without noticing it, and its
writes may leave late. So a leader writes with a transactional producer whose id all workers of the group share: a
worker that initialises its producer fences the producers of all others. That alone is not enough, because a replaced
leader that wakes up before it initialises its producer would fence its successor. So a leader writes only with a
producer that was initialised before the *sending* of a heartbeat that confirmed it as the leader:

    named leader ──► OpenLeaderLog ──► LeaderLogOpened ──► ConfirmLeadership ──► LeadershipConfirmed ──► may write
                         ▲                                                                                 │
                         └──────────────── an append was fenced, or its result is unknown ◄────────────────┘

A replaced leader that initialises its producer late gets no such confirmation, so it writes nothing; the leader that it
has fenced opens the log again.

The first write after the opening reads the log to its end (module `writes`), so it sees all lines of earlier leaders.
The next writes append without another lookup of the end: as long as this worker's appends succeed, no other worker has
opened the log, so no other worker has written a line that only the leader may write. A lookup is necessary again

- after another opening, which follows each append that was fenced, failed, or has an unknown result;
- after a rebalance: a worker that writes without the fence (Kafka Connect without exactly-once support) may have been
  the leader meanwhile;
- for a write that the state read so far forbids, or that depends on the target state: target states are written by any
  worker, without the fence, as in Connect.
"""

from dataclasses import replace

from coterie.herder.leader_log_state import (
    LeaderLogClosed,
    LeadershipUnconfirmed,
    LogReadProgress,
    MayWriteAsLeader,
    OpeningLeaderLog,
    OpenRetryPending,
)
from coterie.herder.messages import (
    LeaderLogOpened,
    LeaderLogOpenFailed,
    OpenLeaderLog,
    SetTimer,
    WriteLogMessage,
)
from coterie.herder.state import LeavingGroup, Turn
from coterie.nouns.membership import ConfirmLeadership, LeadershipConfirmed

RETRY_MS = 1_000
"""How long a leader waits after it could not open its log, before it tries again."""


def open_log_if_leader_else_close(turn: Turn) -> None:
    """Open the leader's log if this worker is the leader, may not write yet, and neither an opening nor its
    confirmation is in progress nor the wait before a retry. If it is no longer the leader, or is leaving the group, it
    gives up the right to write; an opening in progress is not interrupted. During a rebalance the leader keeps the
    right, but must read the log again."""
    herder, leader_log = turn.herder, turn.herder.leader_log
    if not herder.place.is_leader_of_last_round or isinstance(herder.lifecycle.phase, LeavingGroup):
        if not isinstance(leader_log.state, OpeningLeaderLog):
            leader_log.state = LeaderLogClosed()
        return
    if isinstance(leader_log.state, MayWriteAsLeader) and not herder.place.is_leader_with_current_assignment:
        leader_log.state = replace(leader_log.state, log_read=LogReadProgress.MISSING)
    if isinstance(leader_log.state, OpenRetryPending) and turn.now_ms >= leader_log.state.retry_at_ms:
        leader_log.state = LeaderLogClosed()
    if isinstance(leader_log.state, LeaderLogClosed) and herder.place.is_leader_with_current_assignment:
        leader_log.last_number += 1
        leader_log.state = OpeningLeaderLog(opening_number=leader_log.last_number)
        turn.emit(
            OpenLeaderLog(
                opening_number=leader_log.last_number,
                transaction_timeout_ms=herder.lease_durations.session_timeout_ms,
            )
        )


def confirm_leadership_when_opened(turn: Turn, event: LeaderLogOpened) -> None:
    """The log is open: let the member confirm with a heartbeat that this worker is still the leader. If this worker is
    no longer the leader, give up the right to write. Does nothing if ``event`` is of an older opening."""
    leader_log = turn.herder.leader_log
    if leader_log.state != OpeningLeaderLog(opening_number=event.opening_number):
        return
    leader_log.logged_failure = None
    if turn.herder.place.is_leader_of_last_round:
        leader_log.state = LeadershipUnconfirmed(opening_number=event.opening_number)
        turn.emit(ConfirmLeadership(token=event.opening_number))
    else:
        leader_log.state = LeaderLogClosed()


def on_open_failed(turn: Turn, event: LeaderLogOpenFailed) -> None:
    """The log could not be opened: open it again after :data:`RETRY_MS`. Each new reason is logged once."""
    leader_log = turn.herder.leader_log
    if leader_log.state != OpeningLeaderLog(opening_number=event.opening_number):
        return
    leader_log.state = OpenRetryPending(retry_at_ms=turn.now_ms + RETRY_MS)
    turn.emit(SetTimer(timer="leader log", at_ms=turn.now_ms + RETRY_MS))
    if event.reason != leader_log.logged_failure:
        leader_log.logged_failure = event.reason
        text = f"This worker is the leader, but cannot write to the config topic yet; it retries: {event.reason}"
        turn.emit(WriteLogMessage(text=text, is_warning=True))


def on_leadership_confirmed(turn: Turn, event: LeadershipConfirmed) -> None:
    """A heartbeat that was sent after the opening has confirmed that this worker is the leader: it may write from now
    on."""
    leader_log = turn.herder.leader_log
    if leader_log.state == LeadershipUnconfirmed(opening_number=event.token):
        leader_log.state = MayWriteAsLeader(opening_number=event.token)


def on_log_end_lookup_ordered(turn: Turn) -> None:
    """The end of the config log is about to be looked up for a write of the leader."""
    leader_log = turn.herder.leader_log
    if isinstance(leader_log.state, MayWriteAsLeader):
        leader_log.state = replace(leader_log.state, log_read=LogReadProgress.IN_PROGRESS)


def on_log_read_to_end(turn: Turn, opening_number: int) -> None:
    """This worker has read the log to the end that was looked up for a write, when the leader's log had the opening
    ``opening_number``. Does nothing if the log was opened again since, or if a rebalance has begun since the lookup."""
    leader_log = turn.herder.leader_log
    if leader_log.state == MayWriteAsLeader(opening_number=opening_number, log_read=LogReadProgress.IN_PROGRESS):
        leader_log.state = replace(leader_log.state, log_read=LogReadProgress.COMPLETE)


def on_append_failed(turn: Turn, failed_opening_number: int) -> None:
    """An append that used the log's opening ``failed_opening_number`` has failed: give up the right to write, and open
    the log again at once if this worker is still the leader. The result of an older opening is ignored."""
    if turn.herder.leader_log.writable_opening_number == failed_opening_number:
        turn.herder.leader_log.state = LeaderLogClosed()
    open_log_if_leader_else_close(turn)
