"""ListGroups: returns all groups, or only the groups in the requested states (since v4, KIP-518) and of the requested
types (since v5, KIP-848). Names of states and types are case-insensitive. As in Kafka, an unknown name is no error and
matches no group."""

from collections.abc import Sequence

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import CLUSTER, GROUP, AccessCheck, ApiAuthorization, Operation
from coterie.broker.apis.describe_groups import group_state_name
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.classic.messages import DescribeGroup, DescribeGroupResponse
from coterie.groups.connect import messages as connect
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_CLASSIC, _CONNECT = "classic", "connect"
"""The group types of this broker."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    states = {name.strip().lower() for name in request.field_or_default("states_filter", ())}
    types = {name.lower() for name in request.field_or_default("types_filter", ())}
    groups: list[Values] = []
    if not types or _CLASSIC in types:
        groups += await _classic_group_entries(broker)
    if not types or _CONNECT in types:
        groups += await _connect_group_entries(broker)
    wanted = [group for group in groups if not states or group["group_state"].lower() in states]
    return {"error_code": ErrorCode.none, "groups": sorted(wanted, key=lambda group: str(group["group_id"]))}


async def _classic_group_entries(broker: BrokerContext) -> Sequence[Values]:
    """The response entries of the classic groups, also of groups that have only offsets. A connect group, whose offsets
    are stored under its id like those of a classic group, is left out."""
    groups: list[Values] = []
    async for group_id in yielding(broker.groups.ids()):
        if broker.connect_groups_owning_id(group_id) is not None:
            continue
        response = await broker.groups.ask(
            group_id, lambda reply_to: DescribeGroup(reply_to=reply_to, includes_members=False)
        )
        assert isinstance(response, DescribeGroupResponse)
        # Skip a group that was deleted since, or that is being reloaded.
        if response.error is ErrorCode.none:
            groups.append(_group_entry(group_id, response.protocol_type, group_state_name(response.phase), _CLASSIC))
    return groups


async def _connect_group_entries(broker: BrokerContext) -> Sequence[Values]:
    """The response entries of the connect groups, without groups that have only configs; empty if the broker serves no
    connect groups."""
    groups: list[Values] = []
    if broker.connect_groups is None:
        return groups
    async for group_id in yielding(broker.connect_groups.ids()):
        response = await broker.connect_groups.ask(
            group_id, lambda reply_to: connect.DescribeGroup(reply_to=reply_to, includes_members=False)
        )
        assert isinstance(response, connect.DescribeGroupResponse)
        # Skip a group that was deleted since, that is being reloaded, or that has only configs.
        if response.error is ConnectErrorCode.NONE:
            groups.append(_group_entry(group_id, _CONNECT, response.state, _CONNECT))
    return groups


def _group_entry(group_id: GroupId, protocol_type: str | None, state: str, type_: str) -> Values:
    """The response entry of one group."""
    return {"group_id": group_id, "protocol_type": protocol_type, "group_state": str(state), "group_type": type_}


# -- authorization -----------------------------------------------------------------------------------------------------


def _may_describe_cluster_or_group(access: AccessCheck, group: Values) -> bool:
    """Whether the client may see the response entry ``group``: it may describe the cluster, or this group."""
    return access.is_allowed(Operation.DESCRIBE, CLUSTER) or access.is_allowed(
        Operation.DESCRIBE, GROUP, group["group_id"]
    )


API = KafkaApi(
    key=16,
    versions=range(6),
    handle=handle,
    authorization=ApiAuthorization(visibility_check_by_response_field={"groups": _may_describe_cluster_or_group}),
)
