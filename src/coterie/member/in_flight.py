"""A request of a member that has no response yet, the same for each group protocol."""

from dataclasses import dataclass
from typing import Generic

from coterie.member.events import RequestId, RequestT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight(Generic[RequestT_co]):
    """A request that was sent and has no response yet; ``sent_at_ms`` is the time of its sending."""

    id: RequestId
    request: RequestT_co
    sent_at_ms: int
