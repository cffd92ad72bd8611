"""Checks whether a client may commit or fetch the offsets of a connect group: a member with a stale epoch may not
(KIP-848). The offsets themselves are stored like those of a classic group without members."""

from coterie.broker.groups.connect import ConnectGroups
from coterie.groups.connect.messages import CheckOffsetAccess, ErrorOnlyResponse
from coterie.nouns.ids import GroupId, MemberEpoch, MemberId
from coterie.wire.errors import ErrorCode


async def offset_request_error(
    connect_groups: ConnectGroups, group_id: GroupId, *, member_id: str | None, member_epoch: int, is_commit: bool
) -> ErrorCode:
    """NONE if the client may commit (``is_commit``) or fetch offsets of the connect group ``group_id``, else the error
    code of the response. A member must send its present member epoch. A client that is not a member sends a negative
    ``member_epoch``: it may fetch if it sends no ``member_id``, and commit only while the group has no members."""
    response = await connect_groups.ask(
        group_id,
        lambda reply_to: CheckOffsetAccess(
            reply_to=reply_to,
            member_id=MemberId(member_id or ""),
            member_epoch=MemberEpoch(member_epoch),
            is_commit=is_commit,
        ),
    )
    assert isinstance(response, ErrorOnlyResponse)
    return ErrorCode(response.error)
