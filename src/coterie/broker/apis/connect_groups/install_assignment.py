"""ConnectGroupInstallAssignment: the member that was chosen to compute the target assignment installs it (K848C)."""

from dataclasses import replace

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.apis.connect_groups.events import NO_REPLY, install_assignment_event
from coterie.broker.apis.connect_groups.found_group import classic_group_error, require_connect_groups
from coterie.broker.apis.connect_groups.response_values import install_assignment_values
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import InstallAssignmentResponse
from coterie.nouns.ids import GroupId
from coterie.wire.connect_group_jobs import InvalidFieldError
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    group_id = GroupId(request.body.group_id)
    if (error := classic_group_error(broker, group_id)) is not None:
        return _refusal_values(ConnectErrorCode.GROUP_ID_NOT_FOUND, error)
    try:
        if request.has_many_elements:
            event = await broker.codec_thread.run(install_assignment_event, request.body, reply_to=NO_REPLY)
        else:
            event = install_assignment_event(request.body, reply_to=NO_REPLY)
        response = await require_connect_groups(broker).ask(
            group_id, lambda reply_to: replace(event, reply_to=reply_to)
        )
    except InvalidFieldError as invalid:
        return _refusal_values(ConnectErrorCode.INVALID_REQUEST, str(invalid))
    assert isinstance(response, InstallAssignmentResponse)
    return install_assignment_values(response)


def _refusal_values(error: ConnectErrorCode, message: str) -> Values:
    return install_assignment_values(InstallAssignmentResponse(error=error, message=message))


API = KafkaApi(
    key=10002,
    versions=range(1),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
    has_error_message=True,
)
