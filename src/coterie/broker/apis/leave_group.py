"""LeaveGroup: removes one member by its member id, or, since v3, several members by member id or instance id (KIP-345).
The reason (v5, KIP-800) is ignored: Kafka only logs it. In a connect group, an operator's tool removes members with
this request. The coordinator gives the jobs of a removed member to other members only when the jobs have certainly
stopped."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.groups.connect import ConnectGroups
from coterie.groups.classic.messages import LeaveGroup, LeaveGroupResponse, LeavingMember
from coterie.groups.connect import messages as connect
from coterie.nouns.ids import GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_BATCHED_SINCE = 3
"""The first version with several members in one request (KIP-345)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    is_one = request.header.api_version < _BATCHED_SINCE
    leaving = (
        (_to_leaving_member(body.member_id, None),)
        if is_one
        else tuple(_to_leaving_member(one.member_id, one.group_instance_id) for one in body.members)
    )
    response = await _remove_members(broker, GroupId(body.group_id), leaving)
    error = response.error
    if is_one and error is ErrorCode.none:
        error = response.members[0][1]
    return {
        "error_code": error,
        "members": [
            {"member_id": member_id, "group_instance_id": asked.instance_id, "error_code": member_error}
            for asked, (member_id, member_error) in zip(leaving, response.members, strict=False)
        ],
    }


async def _remove_members(
    broker: BrokerContext, group_id: GroupId, leaving: tuple[LeavingMember, ...]
) -> LeaveGroupResponse:
    """Remove the members ``leaving`` from the classic or connect group. Returns an error code for the request and one
    for each member."""
    connect_groups = broker.connect_groups_owning_id(group_id)
    if connect_groups is not None:
        found = [(one.member_id, await _remove_connect_member(connect_groups, group_id, one)) for one in leaving]
        return LeaveGroupResponse(error=ErrorCode.none, members=tuple(found))
    response = await broker.groups.ask(group_id, lambda reply_to: LeaveGroup(reply_to=reply_to, members=leaving))
    assert isinstance(response, LeaveGroupResponse)
    return response


async def _remove_connect_member(connect_groups: ConnectGroups, group_id: GroupId, leaving: LeavingMember) -> ErrorCode:
    """Remove the member ``leaving`` from the connect group; returns the error code for this member's entry in the
    response."""
    response = await connect_groups.ask(
        group_id,
        lambda reply_to: connect.RemoveMember(
            reply_to=reply_to, member_id=leaving.member_id, instance_id=leaving.instance_id
        ),
    )
    assert isinstance(response, connect.ErrorOnlyResponse)
    return ErrorCode(response.error)


def _to_leaving_member(member_id: str, instance_id: str | None) -> LeavingMember:
    return LeavingMember(
        member_id=MemberId(member_id), instance_id=None if instance_id is None else InstanceId(instance_id)
    )


API = KafkaApi(
    key=13,
    versions=range(6),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
)
