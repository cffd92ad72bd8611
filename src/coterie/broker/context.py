"""What each API handler receives: the broker's context (its settings, log, groups, transactions and security), and one
request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.broker.garbage_collection import YoungObjectCollector
from coterie.broker.groups.classic import ClassicGroups
from coterie.broker.groups.connect import ConnectGroups
from coterie.broker.groups.member_connection import MemberConnection
from coterie.broker.loop_yield import SerialThread
from coterie.broker.security.broker_security import BrokerSecurity
from coterie.broker.security.principals import ANONYMOUS, Principal
from coterie.broker.security.sasl import SaslExchange
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import BrokerLog, Topic
from coterie.broker.transactions.coordinator import TransactionCoordinator
from coterie.nouns.ids import GroupId, InstanceId
from coterie.wire.frames import RequestHeader

NODE_ID = 1
"""This broker's node id in its cluster, of which it is the only broker."""
LEADER_EPOCH = 0
"""The leader epoch of every partition; constant, because the leader never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The parts of this broker that API handlers use; the same object for every request. ``host`` and ``port`` are the
    address that clients connect to. ``groups`` has the classic groups, and the committed offsets of all groups, also of
    connect groups."""

    settings: BrokerSettings
    host: str
    port: int
    """``host`` and ``port`` are the address that clients connect to, as responses contain it."""
    log: BrokerLog
    groups: ClassicGroups
    """The classic groups, and the committed offsets of connect groups, each under its group id."""
    connect_groups: ConnectGroups | None
    """None if the broker does not serve connect groups."""
    transactions: TransactionCoordinator
    security: BrokerSecurity
    codec_thread: SerialThread = field(default_factory=SerialThread)
    """Decodes requests and encodes responses that have too many elements for the event loop."""
    young_object_collector: YoungObjectCollector = field(default_factory=YoungObjectCollector)
    """Counts each request after the authentication, and after a number of them collects young objects."""

    def connect_groups_owning_id(self, group_id: str) -> ConnectGroups | None:
        """The broker's ``connect_groups`` if ``group_id`` is the id of a connect group; None if it is the id of a
        classic group or of no group, or if the broker does not serve connect groups."""
        groups = self.connect_groups
        return groups if groups is not None and groups.reserves_group_id(GroupId(group_id)) else None

    async def group_configs(self, group_id: str) -> Mapping[str, str]:
        """The configs that are set on the group, without defaults: Kafka's, which the broker's log stores, and those of
        connect groups, which the group's coordinator stores. Waits while a connect group is being reloaded after a
        failure: until then its state may have configs that were not written."""
        groups, id_ = self.connect_groups, GroupId(group_id)
        if groups is None:
            return self.log.group_configs.get(group_id, {})
        await groups.wait_until_loaded(id_)
        connect_configs = groups.inspect_group(id_, lambda group: group.configs) or {}
        return {**self.log.group_configs.get(group_id, {}), **connect_configs}

    def group_ids_with_configs(self) -> list[str]:
        """The ids of the groups on which configs are set, sorted."""
        groups = set(self.log.group_configs)
        if self.connect_groups is not None:
            found = self.connect_groups.inspect_all_groups(lambda group: group.group_id if group.configs else None)
            groups |= {group_id for group_id in found if group_id is not None}
        return sorted(groups)

    @property
    def address_fields(self) -> dict[str, Any]:
        """This broker's node id, host and port, by the names of the fields in responses."""
        return {"node_id": NODE_ID, "host": self.host, "port": self.port}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """One request of one connection, decoded."""

    header: RequestHeader
    body: Any
    """kio's request entity of the header's API and version."""
    peer_host: str
    """The IP address from which the client is connected."""
    connection: MemberConnection
    """The connection of the request, as the coordinator of connect groups sees it."""
    number: int
    """The number of the request on its connection."""
    has_many_elements: bool
    """Whether the body has more than `ELEMENTS_WITHOUT_YIELD_MAX` array elements. Then the connection reads no further
    request before the response to this one is ready."""
    reserve_response_bytes: Callable[[int], Awaitable[None]]
    """Waits until a response of this many bytes fits into the byte budgets of the connection and its principal, then
    takes the bytes."""
    principal: Principal = ANONYMOUS
    """The principal that sent the request; `ANONYMOUS` without authentication."""
    sasl_exchange: SaslExchange | None = None
    """The connection's SASL exchange until the peer is authenticated; None after that, and without SASL."""

    @property
    def instance_id(self) -> InstanceId | None:
        """The ``group.instance.id`` (KIP-345) in the request's field ``group_instance_id``. None for a dynamic member,
        and in versions without this field."""
        instance_id = self.field_or_default("group_instance_id", None)
        return None if instance_id is None else InstanceId(instance_id)

    def field_or_default(self, field: str, default: Any) -> Any:
        """The value of the request's field ``field``; ``default`` if the request's version has no such field."""
        return getattr(self.body, field, default)


def requested_topic(broker: BrokerContext, entity: Any, name_field: str = "name") -> Topic | None:
    """The topic that an entry of a request names in its field ``name_field`` or, without a name, in ``topic_id``
    (KIP-516); None if the topic does not exist."""
    name = getattr(entity, name_field, None)
    if name is not None:
        return broker.log.topics.get(name)
    return broker.log.topics_by_id.get(entity.topic_id)
