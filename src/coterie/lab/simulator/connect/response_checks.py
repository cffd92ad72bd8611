"""The checks of the responses that the coordinator of a connect group sends: no response contradicts an earlier
response, also not after crashes of the coordinator."""

from coterie.groups.connect.messages import Heartbeat, Request, Response
from coterie.groups.connect.state import Group
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    HeartbeatResponse,
    LeaderOfGroup,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import GroupEpoch, LeaderEpoch, MemberEpoch, MemberId
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.target_assignments import GroupSnapshot


class ResponseChecker:
    """Checks that no response of the coordinator contradicts itself or an earlier response, and that no group that the
    coordinator loads contradicts the responses before, in the simulation with one seed. Responses are not compared with
    the live group. A method raises a `Violation` when an invariant is broken."""

    def __init__(self) -> None:
        self._owner_of_job_epoch: dict[tuple[Job, GroupEpoch], str] = {}
        """The owner to which each job was assigned with each job epoch: an instance id, or the id of a dynamic
        member."""
        self._instance_ids: dict[MemberId, str] = {}
        """The instance id of each static member, by its member id."""
        self._leader_of_epoch: dict[LeaderEpoch, MemberId] = {}
        self._metadata_of_epoch: dict[GroupEpoch, object] = {}
        """For each group epoch of a sent snapshot, the parts of the snapshot from which a target is computed."""
        self._member_epochs: dict[MemberId, MemberEpoch] = {}
        """The highest member epoch in the responses to each member."""
        self._highest_epoch = 0
        """The highest member epoch, assignment epoch or group epoch in any response."""

    def check_sent_response(self, request: Request, response: Response) -> None:
        """Check the response to an accepted heartbeat, or the snapshot of the group in the response to
        PrepareAssignment, when it is sent; other responses are not checked."""
        match request, response:
            case Heartbeat(), HeartbeatResponse(error=ConnectErrorCode.NONE | ConnectErrorCode.COMPUTE_ASSIGNMENT):
                self._check_heartbeat_response(request, response)
            case _, PrepareAssignmentResponse(snapshot=snapshot) if snapshot is not None:
                self._check_one_input_per_group_epoch(snapshot)
            case _:
                pass

    def _check_heartbeat_response(self, request: Heartbeat, response: HeartbeatResponse) -> None:
        """Check the response to an accepted heartbeat: its member epoch, leader epoch and job epochs do not contradict
        earlier responses.

        :raises Violation: MEMBER_EPOCH_KEPT, EPOCH_GIVEN_ONCE, JOB_EPOCH_OWNER, VALID_JOB_EPOCH.
        """
        member_id, epoch = request.member_id, response.member_epoch
        if request.instance_id is not None:
            self._instance_ids[member_id] = request.instance_id
        if epoch >= JOIN_EPOCH:
            last_epoch = self._member_epochs.get(member_id, JOIN_EPOCH)
            # An older heartbeat gets its response when the member has joined again.
            is_older = response.assignment is None and response.leader is None
            if JOIN_EPOCH < epoch < last_epoch or (
                epoch == JOIN_EPOCH and request.member_epoch != JOIN_EPOCH and not is_older
            ):
                raise Violation(
                    Invariant.MEMBER_EPOCH_KEPT, f"{member_id} receives the member epoch {epoch} after {last_epoch}"
                )
            self._member_epochs[member_id] = max(epoch, last_epoch)
            self._highest_epoch = max(self._highest_epoch, epoch)
        if response.leader is not None:
            self._check_one_leader_per_epoch(response.leader)
        if response.assignment is None:
            return
        self._highest_epoch = max(self._highest_epoch, response.assignment.assignment_epoch)
        owner = self._instance_ids.get(member_id, member_id)
        jobs_with_epoch = set[Job]()
        for job_epoch, jobs in response.assignment.jobs_by_assignment_epoch.items():
            if not 0 < job_epoch <= response.assignment.assignment_epoch:
                raise Violation(
                    Invariant.VALID_JOB_EPOCH,
                    f"{member_id} receives the job epoch {job_epoch}, but a job epoch must be above 0 and at most the "
                    f"assignment epoch {response.assignment.assignment_epoch}",
                )
            for job in jobs:
                jobs_with_epoch.add(job)
                known_owner = self._owner_of_job_epoch.setdefault((job, job_epoch), owner)
                if known_owner != owner:
                    raise Violation(
                        Invariant.JOB_EPOCH_OWNER,
                        f"{job} is assigned with the job epoch {job_epoch} to {owner}, but was assigned to "
                        f"{known_owner}",
                    )
        if jobs_with_epoch != set(response.assignment.jobs):
            raise Violation(
                Invariant.VALID_JOB_EPOCH,
                f"{member_id} is assigned {job_list_text(response.assignment.jobs)}, but the response has job epochs "
                f"for {job_list_text(Jobs.of(jobs_with_epoch))}",
            )

    def _check_one_leader_per_epoch(self, leader: LeaderOfGroup) -> None:
        """Check that no leader epoch is sent with two different leaders.

        :raises Violation: EPOCH_GIVEN_ONCE.
        """
        if not leader.member_id:
            return
        known_leader = self._leader_of_epoch.setdefault(leader.leader_epoch, leader.member_id)
        if known_leader != leader.member_id:
            raise Violation(
                Invariant.EPOCH_GIVEN_ONCE,
                f"the leader epoch {leader.leader_epoch} is sent with the leader {leader.member_id}, but was sent with "
                f"{known_leader}",
            )

    def _check_one_input_per_group_epoch(self, snapshot: GroupSnapshot) -> None:
        """Check that ``snapshot`` has the same input of the computation as all earlier snapshots with its group epoch,
        also those before a crash. This input is the configured jobs and the members' claims, drains and assignor
        metadata.

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
                Invariant.EPOCH_GIVEN_ONCE,
                f"the group epoch {snapshot.group_epoch} is sent with two different inputs of the computation",
            )

    def check_and_store_loaded_group(self, group: Group) -> None:
        """Check the group that the coordinator has loaded, at its first start or after a crash. The group epoch must
        not be lower than any epoch in an earlier response. The member epoch of a member, unless it is 0 or negative,
        must not be lower than one that was sent to the member.

        :raises Violation: NOTHING_LOST, MEMBER_EPOCH_KEPT.
        """
        if group.group_epoch < self._highest_epoch:
            raise Violation(
                Invariant.NOTHING_LOST,
                f"after a crash the group epoch is {group.group_epoch}, but {self._highest_epoch} was sent before",
            )
        # A crash may lose the join of a member that has received no response to it.
        for member_id, epoch in sorted(self._member_epochs.items()):
            current = group.currents.get(member_id)
            if current is not None and JOIN_EPOCH < current.member_epoch < epoch:
                raise Violation(
                    Invariant.MEMBER_EPOCH_KEPT,
                    f"after a crash the member epoch of {member_id} is {current.member_epoch}, but {epoch} was sent "
                    "before",
                )
