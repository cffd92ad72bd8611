"""ConnectGroupPrepareAssignment: the member that was chosen to compute the target assignment receives the state of the
group (K848C)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.apis.connect_groups.events import prepare_assignment_event
from coterie.broker.apis.connect_groups.found_group import classic_group_error, require_connect_groups
from coterie.broker.apis.connect_groups.response_values import prepare_assignment_values
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import PrepareAssignmentResponse
from coterie.nouns.ids import GroupId
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    group_id = GroupId(request.body.group_id)
    if (error := classic_group_error(broker, group_id)) is not None:
        refusal = PrepareAssignmentResponse(error=ConnectErrorCode.GROUP_ID_NOT_FOUND, message=error)
        return prepare_assignment_values(refusal)
    response = await require_connect_groups(broker).ask(
        group_id, lambda reply_to: prepare_assignment_event(request.body, reply_to=reply_to)
    )
    assert isinstance(response, PrepareAssignmentResponse)
    return prepare_assignment_values(response)


API = KafkaApi(
    key=10001,
    versions=range(1),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
    has_error_message=True,
)
