"""The declaration of an API: its key, the versions that work, its handler, and the authorization that it requires."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coterie.broker.apis.needs import AccessCheck, Permission
from coterie.broker.apis.permissions import answered
from coterie.broker.node import ApiRequest, Node
from coterie.wire.shapes import Values

Handler = Callable[[Node, ApiRequest], Values | Awaitable[Values | None]]
"""Returns, at once or later, values that are valid for every version; None if the request has no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaApi:
    """One API of the broker. ``needs`` has no default, so that no API is open to all clients by omission."""

    key: int
    versions: range
    handle: Handler
    needs: Permission
    advertised_min: int | None = None
    """The lowest advertised version, if it differs from the lowest version that works."""

    def answer(self, node: Node, request: ApiRequest) -> Values | Awaitable[Values | None]:
        """The response to ``request``; if the broker has access rules, only what they allow."""
        rules = node.admission.rules
        if rules is None:
            return self.handle(node, request)
        return answered(self.needs, AccessCheck(node, request, rules), self.handle)
