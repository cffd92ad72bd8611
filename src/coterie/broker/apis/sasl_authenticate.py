"""SaslAuthenticate: processes one token of the selected SASL mechanism and returns the broker's token. The session
lifetime in the response is 0: sessions do not expire (KIP-368)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import NO_AUTHORIZATION
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values
from coterie.wire.schemas import SASL_AUTHENTICATE
from coterie.wire.scram import AuthenticationFailedError


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    if request.sasl_exchange is None:
        return _error_values(
            ErrorCode.illegal_sasl_state,
            "SaslAuthenticate is not valid here: the client is already authenticated, or the broker does not use SASL.",
        )
    try:
        answer = await request.sasl_exchange.evaluate_token(request.body.auth_bytes)
    except AuthenticationFailedError as error:
        return _error_values(ErrorCode.sasl_authentication_failed, str(error))
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _error_values(error: ErrorCode, message: str) -> Values:
    return {"error_code": error, "error_message": message, "auth_bytes": b"", "session_lifetime": 0}


API = KafkaApi(key=SASL_AUTHENTICATE, versions=range(3), handle=handle, authorization=NO_AUTHORIZATION)
