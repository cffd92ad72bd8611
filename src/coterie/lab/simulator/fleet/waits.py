"""The checks of the scheduled rebalance delay: a leader that also computed the round before must defer the jobs of a
worker that has left since; under any leader the delay must end."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.rounds import CheckedRound, names_of_jobs
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.ids import Generation
from coterie.nouns.jobs import Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    until_ms: int
    place: MemberIdentity
    """The member that has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The last round that a leader computed."""

    generation: Generation
    ends: Mapping[MemberIdentity, Jobs]
    draining: frozenset[MemberIdentity]
    waits: Mapping[Job, Wait]


class Waits:
    def __init__(self, *, max_delay_ms: int, slack_ms: int) -> None:
        """``slack_ms``: how much later than the leader a worker may receive the delay, and measure it from then."""
        self._max_delay_ms = max_delay_ms
        self._slack_ms = slack_ms
        self._by_leader: dict[Process, Remembered] = {}
        self._missing_since_ms: dict[Job, int] = {}
        self._latest = Generation(-1)

    def on_dealt(self, leader: Process, round_: CheckedRound, *, received: Generation | None, now_ms: int) -> None:
        """The process ``leader`` has computed a round; ``received`` is the last generation whose assignment it received
        in its present membership.

        :raises Violation: LOST_WAITS, DELAY_ENDS.
        """
        before = self._by_leader.get(leader)
        waits: Mapping[Job, Wait] = {}
        if before is not None and before.generation == received:
            waits = self._awaited(before, round_, now_ms)
            for member, part in sorted(round_.parts.items()):
                early = [job for job in part.assigned if job in waits and waits[job].place != part.place]
                if early:
                    first = waits[early[0]]
                    raise Violation(
                        Invariant.LOST_WAITS,
                        f"generation {round_.generation} assigns {member} {names_of_jobs(Jobs.of(early))}, "
                        f"deferred for {first.place} for {first.until_ms - now_ms} ms more",
                    )
        self._by_leader[leader] = Remembered(
            generation=round_.generation,
            ends={part.place: part.ends for part in round_.parts.values()},
            draining=frozenset(part.place for part in round_.parts.values() if part.draining),
            waits=waits,
        )
        if round_.generation > self._latest:
            self._latest = round_.generation
            self._on_missing(round_, now_ms)

    def on_dealt_anew(self, leader: Process) -> None:
        """The leader has computed an eager round: all its members stop everything, and no job is deferred."""
        self._by_leader.pop(leader, None)

    def _awaited(self, before: Remembered, round_: CheckedRound, now_ms: int) -> Mapping[Job, Wait]:
        present = {part.place for part in round_.parts.values()}
        if not self._max_delay_ms:
            return {}
        waits = dict(before.waits)
        for place in sorted(before.ends.keys() - present - before.draining):
            fresh = Wait(until_ms=now_ms + self._max_delay_ms, place=place)
            waits.update({job: fresh for job in before.ends[place] if job not in waits})
        return {
            job: wait
            for job, wait in waits.items()
            if wait.until_ms > now_ms
            and wait.place not in present
            and job in round_.configured
            and job not in round_.running
        }

    def _on_missing(self, round_: CheckedRound, now_ms: int) -> None:
        missing = set(round_.missing)
        self._missing_since_ms = {
            job: self._missing_since_ms.get(job, now_ms) for job in sorted(missing, key=str) if job in round_.placeable
        }
        for job, since_ms in self._missing_since_ms.items():
            if now_ms - since_ms >= self._max_delay_ms + self._slack_ms:
                raise Violation(
                    Invariant.DELAY_ENDS,
                    f"generation {round_.generation} defers {job}, which is unowned for {now_ms - since_ms} ms",
                )
