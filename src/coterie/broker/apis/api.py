"""What each API's module declares: its key, the versions that work, what answers and what the peer must be allowed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coterie.broker.apis.needs import AccessCheck, Permission
from coterie.broker.apis.permissions import answered
from coterie.broker.node import ApiRequest, Node
from coterie.wire.shapes import Values

Handler = Callable[[Node, ApiRequest], Values | Awaitable[Values | None]]
"""Returns, at once or later, values that hold for every version; None where the client awaits no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaApi:
    """One API of the broker. Without ``needs`` it cannot be declared, so that no API is open by omission."""

    key: int
    versions: range
    handle: Handler
    needs: Permission
    advertised_min: int | None = None
    """Where it is not the first version that works."""

    def answer(self, node: Node, request: ApiRequest) -> Values | Awaitable[Values | None]:
        """The answer to ``request``; where the broker has rules, as far as they allow it."""
        rules = node.admission.rules
        if rules is None:
            return self.handle(node, request)
        return answered(self.needs, AccessCheck(node, request, rules), self.handle)
