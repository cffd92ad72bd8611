"""SaslHandshake: selects the SASL mechanism (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512) and returns all mechanisms of the
broker. After a request of v0, the client sends its tokens as frames without a request header; since v1 it sends them in
SaslAuthenticate requests. Not supported: reauthentication (KIP-368), because sessions do not expire."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import NO_AUTHORIZATION
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.security.sasl import MECHANISMS
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values
from coterie.wire.schemas import SASL_HANDSHAKE


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    if request.sasl_exchange is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    is_offered = request.sasl_exchange.select_mechanism_or_fail(
        request.body.mechanism, has_raw_tokens=request.header.api_version == 0
    )
    error = ErrorCode.none if is_offered else ErrorCode.unsupported_sasl_mechanism
    return {"error_code": error, "mechanisms": MECHANISMS}


API = KafkaApi(key=SASL_HANDSHAKE, versions=range(2), handle=handle, authorization=NO_AUTHORIZATION)
