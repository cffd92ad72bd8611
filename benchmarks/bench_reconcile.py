"""How long the coordinator of a connect group takes for one member: a step towards its target, and a heartbeat in a
settled group.

``python -m benchmarks.bench_reconcile`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys.
"""

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.brokers import print_progress
from benchmarks.light_groups import light_jobs
from coterie.cli.garbage_collection import raise_broker_gc_thresholds
from coterie.engine.output import Output
from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import (
    ComputeTarget,
    CurrentAssignment,
    Effect,
    Event,
    Heartbeat,
    NextComputationTimer,
    Record,
    ResponseHoldTimer,
    TargetComputed,
)
from coterie.groups.connect.reconcile import reconcile
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group
from coterie.groups.effects import Reply, TimerFired
from coterie.nouns.connect_groups import JOIN_EPOCH, ConfiguredJobs, HeartbeatResponse
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, TargetOfMember

JOBS = (10, 100, 1_000)
MEMBERS = (10, 1_000, 10_000)
JOBS_PER_MEMBER = (3, 30)
RECONCILE_TARGET_MS = 1.0
"""For a member of 1,000 jobs."""
RUNS = 5
SAMPLE = 10
"""The number of members whose heartbeats are measured, spread over the group. It is the same for all groups, so that
the processor's caches have the same effect on each figure."""
HEARTBEATS = 1_000
"""The number of measured heartbeats of all these members together."""
HOLD_MS = 1_000
SETTINGS = ConnectGroupSettings(server_assignors=("cooperative",))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_reconcile", description=__doc__)
    parser.add_argument("--jobs", type=int, action="append", help=f"jobs of the reconciled member (default: {JOBS})")
    parser.add_argument("--members", type=int, action="append", help=f"of settled groups (default: {MEMBERS})")
    options = parser.parse_args(arguments)
    raise_broker_gc_thresholds()  # as a broker does
    for point in measure(options.jobs or JOBS, options.members or MEMBERS):
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        sys.stdout.write(json.dumps({"benchmark": "reconcile", **point, **machine}) + "\n")
        sys.stdout.flush()
    return 0


def measure(jobs: Sequence[int], members: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each case."""
    for count in jobs:
        print_progress(f"a member of {count} jobs ...")
        steps = [measure_member_steps(count) for _ in range(RUNS)]
        for case, took_ms in measure_reconcile(count).items():
            yield {
                "case": case,
                "jobs": count,
                "reconcile_ms": round(took_ms, 4),
                "step_ms": round(min(one[case] for one in steps), 4),
                "target_ms": RECONCILE_TARGET_MS,
            }
    first: dict[str, float] | None = None
    for size in members:
        for per_member in JOBS_PER_MEMBER:
            print_progress(f"a settled group of {size} members with {per_member} jobs each ...")
            figures = measure_settled(size, per_member)
            first = first or figures
            yield {
                "case": "settled",
                "members": size,
                "jobs_per_member": per_member,
                **{key: round(value, 2) for key, value in figures.items()},
                **{f"{key}_ratio": round(value / first[key], 2) for key, value in figures.items()},
                "target_ratio": 1.0,
            }


def shortest_ms(call: Callable[[], object]) -> float:
    """The least processor time of ``call`` in :data:`RUNS` runs, in ms."""
    took_s = []
    for _ in range(RUNS):
        started_s = time.thread_time()
        call()
        took_s.append(time.thread_time() - started_s)
    return 1000 * min(took_s)


# -- one member -------------------------------------------------------------------------------------------------------


def measure_reconcile(count: int) -> Mapping[str, float]:
    """The processor time of the steps of one member, in ms: it gets ``count`` jobs, has to give back half of them, and
    has given them back."""
    member = MemberId("member")
    everything, half = Jobs.of(light_jobs(count)), Jobs.of(itertools.islice(light_jobs(count), count // 2))
    new = CurrentAssignment(member_id=member, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH, request_number=1)
    holder: dict[Job, MemberId] = {}

    def next_step(current: CurrentAssignment, target: Jobs, epoch: int, owned: Jobs | None) -> CurrentAssignment:
        return reconcile(
            current,
            target=target,
            assignment_epoch=GroupEpoch(epoch),
            request_epoch=current.member_epoch,
            owned=owned,
            is_free=lambda job: holder.get(job, member) == member,
            is_in_a_target=everything.__contains__,
            has_received_responses=True,
        )

    assigned = next_step(new, everything, 1, NO_JOBS)
    holder.update(dict.fromkeys(everything, member))
    revoked = next_step(assigned, half, 2, None)
    assert assigned.assigned == everything, assigned
    assert revoked.pending == everything - half, revoked
    return {
        "assign": shortest_ms(lambda: next_step(new, everything, 1, NO_JOBS)),
        "revoke-half": shortest_ms(lambda: next_step(assigned, half, 2, None)),
        "acknowledge-half": shortest_ms(lambda: next_step(revoked, half, 2, half)),
    }


def measure_member_steps(count: int) -> Mapping[str, float]:
    """The processor time of the same steps with the whole step of the group's machine, in ms: its records are applied,
    and neither encoded nor written."""
    everything, half = Jobs.of(light_jobs(count)), Jobs.of(itertools.islice(light_jobs(count), count // 2))
    first, second = MemberId("m0"), MemberId("m1")
    group = SteppedGroup()
    group.join([first], everything)
    group.install({first: everything})
    took_ms = {}
    assigned, took_ms["assign"] = group.timed(group.heartbeat(first, JOIN_EPOCH, has_all_fields=True))
    assert assigned.assignment is not None
    assert len(assigned.assignment.jobs) == count
    group.timed(group.heartbeat(first, assigned.member_epoch, owned=everything))
    group.join([second], everything)
    group.install({first: half, second: everything - half})
    revoked, took_ms["revoke-half"] = group.timed(group.heartbeat(first, assigned.member_epoch))
    assert revoked.assignment is not None
    assert revoked.assignment.jobs == half
    released, took_ms["acknowledge-half"] = group.timed(group.heartbeat(first, revoked.member_epoch, owned=half))
    assert released.member_epoch > assigned.member_epoch, released
    return took_ms


# -- a settled group --------------------------------------------------------------------------------------------------


def measure_settled(size: int, jobs_per_member: int) -> dict[str, float]:
    """The mean processor time of a heartbeat in a group in which nothing happens, in microseconds: of one that gets its
    response at once, and of one whose response is held, with the end of the hold."""
    group = SteppedGroup()
    members = [MemberId(f"member-{number:05}") for number in range(size)]
    jobs = list(light_jobs(size * jobs_per_member))
    shares = {
        member: Jobs.of(jobs[place * jobs_per_member : (place + 1) * jobs_per_member])
        for place, member in enumerate(members)
    }
    group.join(members, Jobs.of(jobs))
    group.install(shares)
    for member, share in shares.items():
        response, _ = group.timed(group.heartbeat(member, JOIN_EPOCH, has_all_fields=True))
        group.timed(group.heartbeat(member, response.member_epoch, owned=share))
    sample = members[:: max(1, size // SAMPLE)][:SAMPLE]
    epoch = MemberEpoch(group.group.assignment_epoch)
    for member in 2 * sample:  # the first heartbeat of each still takes the whole step
        group.timed(group.heartbeat(member, epoch))

    def mean_us(max_wait_ms: int) -> float:
        beating = itertools.islice(itertools.cycle(sample), HEARTBEATS)
        heartbeats = [group.heartbeat(member, epoch, max_wait_ms=max_wait_ms) for member in beating]
        started_s = time.thread_time()
        for heartbeat in heartbeats:
            output = step(group.group, heartbeat, now_ms=group.now_ms)
            if max_wait_ms:
                key = ResponseHoldTimer(member_id=heartbeat.member_id)
                output = step(group.group, TimerFired(key=key), now_ms=group.now_ms + max_wait_ms)
            assert not output.records
        return 1e6 * (time.thread_time() - started_s) / HEARTBEATS

    return {
        "heartbeat_us": min(mean_us(0) for _ in range(RUNS)),
        "held_heartbeat_us": min(mean_us(HOLD_MS) for _ in range(RUNS)),
    }


class SteppedGroup:
    """The machine of one group whose targets are given."""

    def __init__(self) -> None:
        self.group = Group(GroupId("bench"), SETTINGS)
        self.now_ms = 1_000
        self._numbers = itertools.count(1)

    def join(self, members: Sequence[MemberId], configured: Jobs) -> None:
        """Let the members join; the first one reports the configured jobs, which counts if it is the leader."""
        for place, member in enumerate(members):
            self.timed(
                self.heartbeat(
                    member,
                    JOIN_EPOCH,
                    has_all_fields=True,
                    configured=ConfiguredJobs(config_offset=ConfigOffset(1), jobs=configured) if not place else None,
                )
            )

    def install(self, targets: Mapping[MemberId, Jobs]) -> None:
        """Let the coordinator compute, with these targets as the result."""
        timer = NextComputationTimer()
        self.now_ms = self.group.deadlines[timer]
        output = self._step(TimerFired(key=timer))
        (order,) = [effect for effect in output.effects if isinstance(effect, ComputeTarget)]
        target = ComputedTarget(members={member: TargetOfMember(jobs=jobs) for member, jobs in targets.items()})
        self._step(TargetComputed(group_epoch=order.snapshot.group_epoch, target=target))

    def heartbeat(
        self, member: MemberId, epoch: MemberEpoch, *, has_all_fields: bool = False, **fields: Any
    ) -> Heartbeat:
        number = next(self._numbers)
        if has_all_fields:
            fields = {
                "rebalance_timeout_ms": 60_000,
                "server_assignor": "cooperative",
                "owned": NO_JOBS,
                "url": WorkerUrl(f"http://{member}"),
                **fields,
            }
        return Heartbeat(
            reply_to=ReplyTo(number),
            connection_number=1,
            client_id=member,
            client_host="/127.0.0.1",
            member_id=member,
            member_epoch=epoch,
            request_number=number,
            **fields,
        )

    def timed(self, heartbeat: Heartbeat) -> tuple[HeartbeatResponse, float]:
        """The response to ``heartbeat``, and the processor time of its step in ms."""
        started_s = time.thread_time()
        output = self._step(heartbeat)
        took_ms = 1000 * (time.thread_time() - started_s)
        (response,) = [
            effect.response
            for effect in output.effects
            if isinstance(effect, Reply) and effect.to == heartbeat.reply_to
        ]
        assert isinstance(response, HeartbeatResponse)
        assert response.message is None, response
        return response, took_ms

    def _step(self, event: Event) -> Output[Record, Effect]:
        return step(self.group, event, now_ms=self.now_ms)


if __name__ == "__main__":
    sys.exit(main())
