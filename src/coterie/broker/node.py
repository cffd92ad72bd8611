"""What the APIs work on: this broker as clients see it, its log, its groups and its transactions."""

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
"""The one broker of its cluster."""
LEADER_EPOCH = 0
"""Nobody else ever leads a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The broker, as every request of every connection sees it."""

    settings: BrokerSettings
    host: str
    port: int
    """Where clients reach it."""
    log: BrokerLog
    groups: ClassicGroups
    transactions: Transactions
    admission: Admission
    aside: Aside = field(default_factory=Aside)

    @property
    def address(self) -> dict[str, Any]:
        """As several answers tell it."""
        return {"node_id": NODE_ID, "host": self.host, "port": self.port}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request of one connection; ``body`` is kio's entity of the asked version."""

    header: RequestHeader
    body: Any
    peer_host: str
    reserve: Callable[[int], Awaitable[None]]
    """Waits until an answer of so many bytes may be made for this connection."""
    principal: Principal = ANONYMOUS
    """Who asks."""
    conversation: Conversation | None = None
    """While it is not known who asks."""

    @property
    def instance_id(self) -> InstanceId | None:
        """The member's `group.instance.id`; None for a dynamic member, and for every one before KIP-345."""
        instance_id = self.told("group_instance_id", None)
        return None if instance_id is None else InstanceId(instance_id)

    def told(self, field: str, default: Any) -> Any:
        """A field that older versions lack."""
        return getattr(self.body, field, default)


def topic_of(node: Node, entity: Any, name_field: str = "name") -> Topic | None:
    """The topic that ``entity`` means: by name, or by id in the versions that name none (KIP-516)."""
    name = getattr(entity, name_field, None)
    if name is not None:
        return node.log.topics.get(name)
    return node.log.topics_by_id.get(entity.topic_id)
