"""ListGroups: returns all groups, or only the groups in the requested states (since v4, KIP-518) and of the requested
types (since v5, KIP-848). Names of states and types are case-insensitive. As in Kafka, an unknown name is no error and
matches no group."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import CLUSTER, GROUP, AccessCheck, ApiAuthorization, Operation
from coterie.broker.apis.describe_groups import state_name
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.classic.messages import DescribeGroup, DescribeGroupResponse
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_CLASSIC = "classic"
"""The only group type of this broker."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    states = {name.strip().lower() for name in request.field_or_default("states_filter", ())}
    types = {name.lower() for name in request.field_or_default("types_filter", ())}
    groups: list[Values] = []
    async for group_id in yielding(broker.groups.ids() if not types or _CLASSIC in types else ()):
        response = await broker.groups.ask(
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


def _is_group_visible(access: AccessCheck, group: Values) -> bool:
    """Whether the client may see the response entry ``group``: it may describe the cluster, or this group."""
    return access.is_allowed(Operation.DESCRIBE, CLUSTER) or access.is_allowed(
        Operation.DESCRIBE, GROUP, group["group_id"]
    )


API = KafkaApi(
    key=16,
    versions=range(6),
    handle=handle,
    authorization=ApiAuthorization(is_visible_by_field={"groups": _is_group_visible}),
)
