"""The declaration of an API: its key, the versions that work, its handler, and the authorization that it requires."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coterie.broker.apis.authorization import AccessCheck, ApiAuthorization
from coterie.broker.apis.authorized_response import authorized_response
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.wire.kio_entities import Values

Handler = Callable[[BrokerContext, ApiRequest], Values | Awaitable[Values | None]]
"""Handles one request. Returns the values of the response by field name, valid for every version, or an awaitable for
them; the awaitable's result is None if the request has no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaApi:
    """The declaration of one API. ``authorization`` has no default, so that no API is open to all clients by omission.
    ``advertised_version_min``, if it is not None, replaces the lowest of ``versions`` in ApiVersions responses.
    ``has_error_message``: the response has one error code, with a message; then a request with too many array elements
    is refused with INVALID_REQUEST, and otherwise its connection is closed."""

    key: int
    """Kafka's number of the API (API key)."""
    versions: range
    """The versions that work; a request of another version is not decoded."""
    handle: Handler
    authorization: ApiAuthorization
    advertised_version_min: int | None = None
    """The lowest version in ApiVersions responses; None: the lowest of ``versions``."""
    has_error_message: bool = False
    """Whether the response has one error code, with a message. Then a request with too many array elements is refused
    with INVALID_REQUEST; otherwise its connection is closed, as in Kafka."""

    def authorize_and_handle(self, broker: BrokerContext, request: ApiRequest) -> Values | Awaitable[Values | None]:
        """The values of the response to ``request``, or an awaitable for them. If the broker has access rules, only
        what they allow is handled, and the rest is refused (`authorized_response`)."""
        rules = broker.security.acls
        if rules is None:
            return self.handle(broker, request)
        return authorized_response(self.authorization, AccessCheck(broker, request, rules), self.handle)
