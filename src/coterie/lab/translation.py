"""Conversion between the messages of `member` (the group client of a worker) and those of `groups` (the coordinator),
in place of their encoding and decoding in a real network."""

from collections.abc import Callable

from coterie.groups.classic import messages as groups
from coterie.member.classic import messages as member
from coterie.nouns.ids import MemberId


def to_group_request(
    worker: str,
    reply_to: groups.ReplyTo,
    request: member.Request,
    *,
    fresh_member_id: Callable[[str], MemberId],
) -> groups.Request:
    """``request`` of the worker named ``worker``, in the form in which the broker's API passes it to the group's
    coordinator. ``worker`` becomes the client id. ``fresh_member_id`` is called for a JoinGroup only: it receives the
    instance id or ``worker``, with which the new member id should begin."""
    match request:
        case member.HeartbeatRequest():
            return groups.Heartbeat(
                reply_to=reply_to,
                member_id=request.member_id,
                generation=request.generation,
                instance_id=request.instance_id,
            )
        case member.JoinRequest():
            return groups.JoinGroup(
                reply_to=reply_to,
                member_id=request.member_id,
                fresh_member_id=fresh_member_id(request.instance_id or worker),
                requires_known_member_id=True,
                client_id=worker,
                client_host="/127.0.0.1",
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=tuple(
                    groups.MemberProtocol(name=name, metadata=metadata) for name, metadata in request.protocols
                ),
                instance_id=request.instance_id,
                supports_skip_assignment=True,
            )
        case member.SyncRequest():
            return groups.SyncGroup(
                reply_to=reply_to,
                member_id=request.member_id,
                generation=request.generation,
                protocol_type=request.protocol_type,
                protocol=request.protocol,
                assignments=request.assignments,
                instance_id=request.instance_id,
            )
        case member.LeaveRequest():
            leaving_member = groups.LeavingMember(member_id=request.member_id, instance_id=request.instance_id)
            return groups.LeaveGroup(reply_to=reply_to, members=(leaving_member,))


def to_member_response(response: object) -> member.Response:
    """The coordinator's ``response``, in the form in which the worker's client passes it to the member machine. The
    response to LeaveGroup has the error of the one member that the worker's request named.

    :raises AssertionError: when ``response`` is the response to a request that workers never send.
    """
    match response:
        case groups.HeartbeatResponse():
            return member.HeartbeatResponse(error=response.error)
        case groups.JoinGroupResponse():
            return member.JoinResponse(
                error=response.error,
                generation=response.generation,
                protocol=response.protocol or "",
                leader=response.leader,
                member_id=response.member_id,
                metadata_by_member={
                    joined_member.member_id: joined_member.metadata for joined_member in response.members
                }
                or None,
                instance_id_by_member={
                    joined_member.member_id: joined_member.instance_id
                    for joined_member in response.members
                    if joined_member.instance_id is not None
                },
                skip_assignment=response.skip_assignment,
            )
        case groups.SyncGroupResponse():
            return member.SyncResponse(error=response.error, assignment=response.assignment)
        case groups.LeaveGroupResponse():
            error = response.members[0][1] if response.members else response.error
            return member.LeaveResponse(error=error)
        case _:
            raise AssertionError(
                "bug in the coordinator or the lab: a worker receives the response to a request that workers never "
                f"send: {response}"
            )
