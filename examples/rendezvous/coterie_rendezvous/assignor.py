"""An assignor that selects the worker of each job by a hash (rendezvous hashing), weighted by the workers' processors.

Each job has a score on each worker, and the worker with the highest score gets the job. So a worker that joins takes
jobs only for itself, and the jobs of a worker that leaves are spread over all others; no other job moves. The numbers
of jobs are balanced only on average.
"""

import hashlib
import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

from coterie.assignors.connect.interface import AssignorMetadata
from coterie.assignors.members import RebalancePolicy
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.target_assignments import (
    ComputedTarget,
    GroupSnapshot,
    SnapshotMember,
    TargetOfMember,
    UnplaceableJobs,
)

VERSION = 1
"""The version of the metadata in both directions. A newer version of this package that changes one of the two formats
raises this number, and states the oldest version that it can read in ``minimum_version``."""

logger = logging.getLogger(__name__)


class RendezvousAssignor:
    """Implements `coterie.assignors.connect.interface.ConnectAssignor`."""

    name = "rendezvous"
    minimum_version = VERSION
    maximum_version = VERSION

    def __init__(self, policy: RebalancePolicy) -> None:
        """``policy`` has the delays and limits of the worker's settings. This assignor uses none of them: it moves the
        jobs of a worker that has left at once."""

    def metadata(self) -> AssignorMetadata:
        """The number of this worker's processors, as decimal digits."""
        return AssignorMetadata(version=VERSION, metadata=str(os.cpu_count() or 1).encode())

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        """The target assignment for ``group``: a function of ``group`` only, because any worker may compute the next
        one. Each member receives its number of jobs as metadata."""
        jobs_by_member: defaultdict[MemberId, list[Job]] = defaultdict(list)
        homeless: list[Job] = []
        for job in group.configured:
            takers = _takers(job, group.members)
            if takers:
                best = max(takers, key=lambda member: (_score(member, job), member.member_id))
                jobs_by_member[best.member_id].append(job)
            else:
                homeless.append(job)
        return ComputedTarget(
            members={member: _target(jobs) for member, jobs in jobs_by_member.items()},
            unplaceable=(UnplaceableJobs(jobs=Jobs.of(homeless), reason="no worker may run it"),) if homeless else (),
        )

    def on_assignment(self, assignment: TargetOfMember) -> None:
        """Log the message of the assignor that has computed the target. The message may be that of another assignor, if
        this worker offers several."""
        if assignment.version == VERSION:
            logger.info("The target assignment has %s jobs for this worker", assignment.metadata.decode())


def _target(jobs: Iterable[Job]) -> TargetOfMember:
    assigned = Jobs.of(jobs)
    return TargetOfMember(jobs=assigned, version=VERSION, metadata=str(len(assigned)).encode())


def _takers(job: Job, members: Sequence[SnapshotMember]) -> list[SnapshotMember]:
    """The members that may run ``job``: those that claim it (KIP-987), otherwise those that claim nothing. A member
    that is being drained only if there is no other one."""
    claiming = [member for member in members if member.claims is not None and job in member.claims]
    allowed = claiming or [member for member in members if member.claims is None]
    return [member for member in allowed if not member.draining] or allowed


def _score(member: SnapshotMember, job: Job) -> float:
    """The score of ``job`` on ``member``. A member with twice the processors wins twice as many jobs.

    A worker has the same scores after a restart: its instance id or its URL stays the same, its member id does not.
    ``hash`` would give other scores in each process.
    """
    worker = member.instance_id or member.url
    digest = hashlib.sha256(f"{worker} {job}".encode()).digest()
    between_0_and_1 = (int.from_bytes(digest[:6], "big") + 0.5) / 2**48
    return -int(member.metadata) / math.log(between_0_and_1)
