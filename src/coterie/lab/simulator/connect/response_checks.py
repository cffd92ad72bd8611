"""The checks of the responses that the coordinator of a connect group sends: no response contradicts an earlier one,
also after crashes of the coordinator."""

from coterie.groups.connect.messages import Heartbeat, Request, Response
from coterie.groups.connect.state import Group
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN,
    HeartbeatResponse,
    LeaderOfGroup,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import GroupEpoch, LeaderEpoch, MemberEpoch, MemberId
from coterie.nouns.jobs import Job
from coterie.nouns.target_assignments import GroupSnapshot


class ResponseChecker:
    """Checks the responses of the coordinator in the simulation with one seed. A method raises a `Violation` when an
    invariant is broken."""

    def __init__(self) -> None:
        self._owner_of_job_epoch: dict[tuple[Job, GroupEpoch], str] = {}
        self._instance_ids: dict[MemberId, str] = {}
        """The instance id of each static member."""
        self._leader_of_epoch: dict[LeaderEpoch, MemberId] = {}
        self._metadata_of_epoch: dict[GroupEpoch, object] = {}
        """For each group epoch that a computing member has received, what its target has to be computed from."""
        self._member_epochs: dict[MemberId, MemberEpoch] = {}
        """The last member epoch in a response to each member."""
        self._highest_epoch = 0
        """The highest epoch in any response."""

    def on_reply(self, request: Request, response: Response) -> None:
        """Check a response that is being sent."""
        match request, response:
            case Heartbeat(), HeartbeatResponse(error=ConnectErrorCode.NONE | ConnectErrorCode.COMPUTE_ASSIGNMENT):
                self._check_heartbeat_response(request, response)
            case _, PrepareAssignmentResponse(snapshot=snapshot) if snapshot is not None:
                self._check_prepared_snapshot(snapshot)
            case _:
                pass

    def _check_heartbeat_response(self, request: Heartbeat, response: HeartbeatResponse) -> None:
        """Check the response to an accepted heartbeat.

        :raises Violation: MEMBER_EPOCH_KEPT, EPOCH_GIVEN_ONCE, JOB_EPOCH_OWNER, VALID_JOB_EPOCH.
        """
        member_id, epoch = request.member_id, response.member_epoch
        if request.instance_id is not None:
            self._instance_ids[member_id] = request.instance_id
        if epoch >= JOIN:
            last_epoch = self._member_epochs.get(member_id, JOIN)
            # An older heartbeat gets its response when the member has joined again.
            is_older = response.assignment is None and response.leader is None
            if JOIN < epoch < last_epoch or (epoch == JOIN and request.member_epoch != JOIN and not is_older):
                raise Violation(
                    Invariant.MEMBER_EPOCH_KEPT, f"{member_id} receives the member epoch {epoch} after {last_epoch}"
                )
            self._member_epochs[member_id] = max(epoch, last_epoch)
            self._highest_epoch = max(self._highest_epoch, epoch)
        if response.leader is not None:
            self._check_leader_epoch(response.leader)
        if response.assignment is None:
            return
        self._highest_epoch = max(self._highest_epoch, response.assignment.assignment_epoch)
        owner = self._instance_ids.get(member_id, member_id)
        jobs_with_epoch = set[Job]()
        for job_epoch, jobs in response.assignment.jobs_by_epoch.items():
            if not 0 < job_epoch <= response.assignment.assignment_epoch:
                raise Violation(
                    Invariant.VALID_JOB_EPOCH,
                    f"{member_id} receives the job epoch {job_epoch} at the assignment epoch "
                    f"{response.assignment.assignment_epoch}",
                )
            for job in jobs:
                jobs_with_epoch.add(job)
                known_owner = self._owner_of_job_epoch.setdefault((job, job_epoch), owner)
                if known_owner != owner:
                    raise Violation(
                        Invariant.JOB_EPOCH_OWNER, f"{job} at the epoch {job_epoch} is of {known_owner} and of {owner}"
                    )
        if jobs_with_epoch != set(response.assignment.jobs):
            raise Violation(Invariant.VALID_JOB_EPOCH, f"{member_id} receives jobs without job epochs, or vice versa")

    def _check_leader_epoch(self, leader: LeaderOfGroup) -> None:
        """Check that each leader epoch has one leader ever.

        :raises Violation: EPOCH_GIVEN_ONCE.
        """
        if not leader.member_id:
            return
        known_leader = self._leader_of_epoch.setdefault(leader.leader_epoch, leader.member_id)
        if known_leader != leader.member_id:
            raise Violation(
                Invariant.EPOCH_GIVEN_ONCE,
                f"the leader epoch {leader.leader_epoch} is of {known_leader} and of {leader.member_id}",
            )

    def _check_prepared_snapshot(self, snapshot: GroupSnapshot) -> None:
        """Check that the coordinator never sends two different inputs of the computation, which are the configured jobs
        and the members' claims, drains and assignor metadata, with the same group epoch, also after a crash.

        :raises Violation: EPOCH_GIVEN_ONCE.
        """
        self._highest_epoch = max(self._highest_epoch, snapshot.group_epoch)
        metadata = (
            snapshot.configured,
            {
                one.instance_id or one.member_id: (one.claims, one.draining, one.version, one.metadata)
                for one in snapshot.members
            },
        )
        if self._metadata_of_epoch.setdefault(snapshot.group_epoch, metadata) != metadata:
            raise Violation(
                Invariant.EPOCH_GIVEN_ONCE, f"the group epoch {snapshot.group_epoch} is that of two different states"
            )

    def on_loaded(self, group: Group) -> None:
        """Check the group that the coordinator has loaded after a crash: the group epoch is not below any epoch in an
        earlier response, and the member epoch of a member, unless it is 0 or below, not below one that the member was
        sent.

        :raises Violation: NOTHING_LOST, MEMBER_EPOCH_KEPT.
        """
        if group.group_epoch < self._highest_epoch:
            raise Violation(
                Invariant.NOTHING_LOST,
                f"after a crash the group is at the epoch {group.group_epoch}, {self._highest_epoch} was sent before",
            )
        # A crash may lose the join of a member that has received no response to it.
        for member_id, epoch in sorted(self._member_epochs.items()):
            current = group.currents.get(member_id)
            if current is not None and JOIN < current.member_epoch < epoch:
                raise Violation(
                    Invariant.MEMBER_EPOCH_KEPT,
                    f"after a crash {member_id} is at the member epoch {current.member_epoch}, {epoch} was sent before",
                )
