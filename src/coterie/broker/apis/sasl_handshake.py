"""SaslHandshake: selects the mechanism (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512); after v0 tokens are frames without a
header. Not supported: reauthentication (KIP-368), because sessions do not expire."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import NOTHING
from coterie.broker.node import ApiRequest, Node
from coterie.broker.security.sasl import MECHANISMS
from coterie.wire.errors import ErrorCode
from coterie.wire.schemas import SASL_HANDSHAKE
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    if request.conversation is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    is_offered = request.conversation.choose(request.body.mechanism, has_raw_tokens=request.header.api_version == 0)
    error = ErrorCode.none if is_offered else ErrorCode.unsupported_sasl_mechanism
    return {"error_code": error, "mechanisms": MECHANISMS}


API = KafkaApi(key=SASL_HANDSHAKE, versions=range(2), handle=handle, needs=NOTHING)
