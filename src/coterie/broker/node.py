"""The broker's context for API handlers: its settings, log, groups, transactions and security; and one request."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from coterie.broker.groups.classic import ClassicGroups
from coterie.broker.security.admission import Admission
from coterie.broker.security.principals import ANONYMOUS, Principal
from coterie.broker.security.sasl import Conversation
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import BrokerLog, Topic
from coterie.broker.transactions.coordinator import Transactions
from coterie.broker.turns import Aside
from coterie.nouns.ids import InstanceId
from coterie.wire.frames import RequestHeader

NODE_ID = 1
"""The only broker of its cluster."""
LEADER_EPOCH = 0
"""The leader of a partition never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This broker, as passed to the handler of every request."""

    settings: BrokerSettings
    host: str
    port: int
    """The address that clients connect to: host and port."""
    log: BrokerLog
    groups: ClassicGroups
    transactions: Transactions
    admission: Admission
    aside: Aside = field(default_factory=Aside)

    @property
    def address(self) -> dict[str, Any]:
        """This broker's fields in responses that list brokers."""
        return {"node_id": NODE_ID, "host": self.host, "port": self.port}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request of one connection; ``body`` is kio's entity of the request's version."""

    header: RequestHeader
    body: Any
    peer_host: str
    reserve: Callable[[int], Awaitable[None]]
    """Waits until a response of this many bytes fits into the budgets of the connection and its principal."""
    principal: Principal = ANONYMOUS
    """The authenticated principal that sent the request."""
    conversation: Conversation | None = None
    """The SASL exchange; only set until it has authenticated the peer."""

    @property
    def instance_id(self) -> InstanceId | None:
        """The member's `group.instance.id`; None for a dynamic member, and in versions before KIP-345."""
        instance_id = self.told("group_instance_id", None)
        return None if instance_id is None else InstanceId(instance_id)

    def told(self, field: str, default: Any) -> Any:
        """The value of a field that older API versions do not have, else ``default``."""
        return getattr(self.body, field, default)


def topic_of(node: Node, entity: Any, name_field: str = "name") -> Topic | None:
    """The topic of ``entity``: by its name, or by its topic id in versions that have no name (KIP-516)."""
    name = getattr(entity, name_field, None)
    if name is not None:
        return node.log.topics.get(name)
    return node.log.topics_by_id.get(entity.topic_id)
