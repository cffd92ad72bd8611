"""The offsets of connect groups: their epochs fence commits and fetches (KIP-848). The offsets themselves are kept like
those of a classic group without members."""

from coterie.broker.context import BrokerContext
from coterie.groups.connect.messages import ChangeResponse, CheckOffsetRequest
from coterie.nouns.ids import GroupId, MemberEpoch, MemberId
from coterie.wire.errors import ErrorCode


async def connect_offset_error(
    broker: BrokerContext, group_id: GroupId, *, member_id: str | None, member_epoch: int, is_commit: bool
) -> ErrorCode | None:
    """NONE if the client may commit or fetch offsets of this connect group, else the error code of the response; None
    if the group is no connect group. Without ``member_id`` and with a negative ``member_epoch`` the client is not a
    member."""
    connect_groups = broker.connect_groups_with(group_id)
    if connect_groups is None:
        return None
    response = await connect_groups.ask(
        group_id,
        lambda reply_to: CheckOffsetRequest(
            reply_to=reply_to,
            member_id=MemberId(member_id or ""),
            member_epoch=MemberEpoch(member_epoch),
            is_commit=is_commit,
        ),
    )
    assert isinstance(response, ChangeResponse)
    return ErrorCode(response.error)
