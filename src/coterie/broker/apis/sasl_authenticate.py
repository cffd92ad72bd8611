"""SaslAuthenticate: one token of the selected mechanism. The session lifetime in the response is 0: sessions do not
expire (KIP-368)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import NOTHING
from coterie.broker.node import ApiRequest, Node
from coterie.wire.errors import ErrorCode
from coterie.wire.schemas import SASL_AUTHENTICATE
from coterie.wire.scram import DeniedError
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    if request.conversation is None:
        return _refused(
            ErrorCode.illegal_sasl_state, "SaslAuthenticate is only valid before authentication is complete."
        )
    try:
        answer = await request.conversation.take(request.body.auth_bytes)
    except DeniedError as error:
        return _refused(ErrorCode.sasl_authentication_failed, str(error))
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _refused(error: ErrorCode, message: str) -> Values:
    return {"error_code": error, "error_message": message, "auth_bytes": b"", "session_lifetime": 0}


API = KafkaApi(key=SASL_AUTHENTICATE, versions=range(3), handle=handle, needs=NOTHING)
