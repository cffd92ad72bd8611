"""ConnectGroupDescribe: returns the state of connect groups, with their members and the jobs of each."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import GROUP, Operation, groups_authorization
from coterie.broker.apis.connect_groups.events import describe_event
from coterie.broker.apis.connect_groups.found_group import classic_group_error, require_connect_groups
from coterie.broker.apis.connect_groups.response_values import describe_values, described_group_values
from coterie.broker.apis.operations import allowed_operations_bit_field
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.connect.messages import DescribeGroupResponse
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.ids import GroupId
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return describe_values(
        [await _group_values(broker, request, GroupId(one)) async for one in yielding(request.body.group_ids)]
    )


async def _group_values(broker: BrokerContext, request: ApiRequest, group_id: GroupId) -> Values:
    """The response entry of one group: its state, members and jobs, or an error."""
    if (error := classic_group_error(broker, group_id)) is not None:
        refusal = DescribeGroupResponse(error=ConnectErrorCode.GROUP_ID_NOT_FOUND, message=error)
        return described_group_values(group_id, refusal)
    response = await require_connect_groups(broker).ask(group_id, lambda reply_to: describe_event(reply_to=reply_to))
    assert isinstance(response, DescribeGroupResponse)
    is_wanted = response.error is ConnectErrorCode.NONE and request.body.include_authorized_operations
    operations = allowed_operations_bit_field(broker, request, GROUP, group_id, is_requested=is_wanted)
    return described_group_values(group_id, response, authorized_operations=operations)


API = KafkaApi(
    key=10003,
    versions=range(1),
    handle=handle,
    authorization=groups_authorization(Operation.DESCRIBE, request_field="group_ids", response_field="groups"),
)
