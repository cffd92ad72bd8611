"""Conversion between the messages of `member` and those of `groups` for connect groups, in place of their encoding and
decoding in a real network."""

from coterie.groups.connect import messages as groups
from coterie.member.connect import messages as member
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import HeartbeatResponse, InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription, MemberDescription
from coterie.nouns.ids import ReplyTo


def to_coordinator_request(
    request: member.Request, reply_to: ReplyTo, *, connection: int, client_id: str
) -> groups.Heartbeat | groups.PrepareAssignment | groups.InstallAssignment | groups.DescribeGroup:
    """``request`` of the worker ``client_id``, in the form in which the broker's API passes it to the group's
    coordinator. ``connection`` is the number of the worker's connection."""
    match request:
        case member.HeartbeatRequest():
            return groups.Heartbeat(
                reply_to=reply_to,
                connection_number=connection,
                client_id=client_id,
                client_host="/127.0.0.1",
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                request_number=request.request_number,
                instance_id=request.instance_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                server_assignor=request.server_assignor,
                client_assignors=request.client_assignors,
                owned=request.owned,
                url=request.url,
                name=request.name,
                config_offset=request.config_offset,
                config_topic_id=request.config_topic_id,
                configured=request.configured,
                claims=request.claims,
                draining=request.draining,
                max_wait_ms=request.max_wait_ms,
                connection_grace_ms=request.connection_grace_ms,
                resumes=request.resumes,
            )
        case member.PrepareAssignmentRequest():
            return groups.PrepareAssignment(
                reply_to=reply_to, member_id=request.member_id, member_epoch=request.member_epoch
            )
        case member.InstallAssignmentRequest():
            return groups.InstallAssignment(
                reply_to=reply_to,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                group_epoch=request.group_epoch,
                assignor_error=request.assignor_error,
                target=request.target,
            )
        case member.GroupDescriptionRequest():
            return groups.DescribeGroup(reply_to=reply_to)


def to_worker_response(response: groups.Response) -> member.Response:
    """The coordinator's ``response``, in the form in which the worker's client passes it to the member machine. The
    response to ConnectGroupDescribe has no description if it has an error.

    :raises AssertionError: for an `ErrorOnlyResponse`: it is the response to requests that workers never send.
    """
    match response:
        case HeartbeatResponse() | PrepareAssignmentResponse() | InstallAssignmentResponse():
            return response
        case groups.DescribeGroupResponse():
            is_described = response.error is ConnectErrorCode.NONE
            return member.GroupDescriptionResponse(
                error=response.error,
                message=response.message,
                description=_to_group_description(response) if is_described else None,
            )
        case groups.ErrorOnlyResponse():
            raise AssertionError(
                "bug in the coordinator or the lab: a worker receives an ErrorOnlyResponse, which is the response to "
                "requests that workers never send"
            )


def _to_group_description(response: groups.DescribeGroupResponse) -> GroupDescription:
    """The description of the group in ``response``."""
    return GroupDescription(
        state=response.state.value,
        group_epoch=response.group_epoch,
        assignment_epoch=response.assignment_epoch,
        assignor=response.assignor,
        computing_member=response.computing_member,
        assignment_error=response.assignment_error,
        leader=response.leader,
        leader_epoch=response.leader_epoch,
        config_offset=response.config_offset,
        members=tuple(
            MemberDescription(
                member_id=one.metadata.member_id,
                member_epoch=one.member_epoch,
                state=one.state,
                instance_id=one.metadata.instance_id,
                client_id=one.metadata.client_id,
                client_host=one.metadata.client_host,
                url=one.metadata.url,
                name=one.metadata.name,
                config_offset=one.config_offset,
                claims=one.metadata.claims,
                draining=one.metadata.draining,
                assigned=one.assigned,
                pending=one.pending,
                target=one.target,
                awaited_jobs_by_holder=one.awaited_jobs_by_holder,
            )
            for one in response.members
        ),
        departed=tuple(
            DepartedMemberDescription(
                member_id=one.departed_member.member_id,
                instance_id=one.departed_member.instance_id,
                url=one.departed_member.url,
                jobs=one.departed_member.jobs,
                delay_left_ms=one.delay_left_ms,
                held_jobs_left_ms=one.held_jobs_left_ms,
            )
            for one in response.departed_members
        ),
        unplaceable=response.unplaceable,
    )
