"""ListGroups: all groups, or those in some states (v4, KIP-518) or of some types (v5, KIP-848). Names of states and
types are case-insensitive; as in Kafka an unknown name matches no group and is no error."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.describe_groups import state_name
from coterie.broker.apis.needs import CLUSTER, GROUP, AccessCheck, Operation, Permission
from coterie.broker.node import ApiRequest, Node
from coterie.broker.turns import in_turns
from coterie.groups.classic.messages import DescribeGroup, DescribeGroupResponse
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_CLASSIC = "classic"


async def handle(node: Node, request: ApiRequest) -> Values:
    states = {name.strip().lower() for name in request.told("states_filter", ())}
    types = {name.lower() for name in request.told("types_filter", ())}
    groups: list[Values] = []
    async for group_id in in_turns(node.groups.known() if not types or _CLASSIC in types else ()):
        response = await node.groups.ask(
            group_id, lambda reply_to: DescribeGroup(reply_to=reply_to, with_members=False)
        )
        assert isinstance(response, DescribeGroupResponse)
        state = state_name(response.phase)
        # Skip a group that was deleted since, or that is being reloaded.
        if response.error is ErrorCode.none and (not states or state.lower() in states):
            groups.append(
                {
                    "group_id": group_id,
                    "protocol_type": response.protocol_type,
                    "group_state": state,
                    "group_type": _CLASSIC,
                }
            )
    return {"error_code": ErrorCode.none, "groups": groups}


# -- authorization -----------------------------------------------------------------------------------------------------


def _is_group_shown(access: AccessCheck, group: Values) -> bool:
    return access.may(Operation.DESCRIBE, CLUSTER) or access.may(Operation.DESCRIBE, GROUP, group["group_id"])


API = KafkaApi(key=16, versions=range(6), handle=handle, needs=Permission(shown={"groups": _is_group_shown}))
