"""Reads and changes groups, of either group protocol, for an operator. The client is no member of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.kafka.bootstrap import BootstrapClient
from coterie.kafka.connect_group_values import to_group_description_response
from coterie.kafka.connection import (
    CONNECT_GROUP_DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    INCREMENTAL_ALTER_CONFIGS,
    LEAVE_GROUP,
    LIST_GROUPS,
    METADATA,
    Address,
    ApiVersionRange,
    UnsupportedApiError,
)
from coterie.kafka.coordinator import error_code_in_leave_response
from coterie.kafka.coordinator_finder import MOVED, CoordinatorFinder
from coterie.kafka.security import PLAINTEXT
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.group_description import GroupDescription
from coterie.nouns.ids import GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_GROUP_RESOURCE = 32
"""Kafka's number of the config resources that are groups."""
_SET, _DELETE = 0, 1
"""Kafka's numbers of the operations of IncrementalAlterConfigs."""
_SOURCE_GROUP = 8
"""Kafka's number of the config source GROUP: the config is set on the group itself."""
_RETRIED = frozenset({*map(int, MOVED), int(ErrorCode.coordinator_load_in_progress)})
"""Error codes that stop after a short time (the coordinator moves or loads the group): the request is repeated."""
_RETRY_INTERVAL_S = 0.2
_DEAD = "Dead"
"""The state of a group that does not exist."""
_REASON = "removed by an operator"
"""The reason for the removal of a member, in LeaveGroup requests (KIP-800)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """One group of the cluster, as a ListGroups response describes it."""

    group_id: GroupId
    type: str
    """``classic``, ``connect`` or another type of Kafka's; empty if the broker reports none (before Kafka 3.8)."""
    protocol_type: str
    """``connect`` for workers, ``consumer`` for consumers; empty for a group without members."""
    state: str
    """Empty if the broker reports none (before Kafka 2.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberDescription:
    """One member of a classic group."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupDescription:
    """A classic group, as a DescribeGroups response describes it."""

    state: str
    protocol_type: str
    protocol: str
    """The selected protocol; empty during a rebalance."""
    members: tuple[ClassicMemberDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One config that can be set on a group, with its present value."""

    name: str
    value: str
    is_set_on_group: bool
    """Whether the config is set on the group itself; else ``value`` is the broker's value."""
    documentation: str


class GroupAdmin:
    """Sends an operator's requests to the brokers of a cluster. Each call opens its own connections."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        security: KafkaSecurity = PLAINTEXT,
        timeout_ms: int = 10_000,
    ) -> None:
        """``timeout_ms`` is the time limit of each request. While a group has no coordinator, or the coordinator loads
        the group, requests for this group are repeated within this limit."""
        self._servers = BootstrapClient(bootstrap_servers, client_id, security)
        self._finder = CoordinatorFinder(bootstrap_servers, client_id, security)
        self._timeout_s = timeout_ms / 1000
        # A server that accepts connections and never responds must leave enough time for the others, and for the
        # coordinator that one of them names.
        self._server_timeout_s = self._timeout_s / (len(bootstrap_servers) + 1)

    async def list_groups(self) -> list[ListedGroup]:
        """All groups of the cluster that this client may describe, sorted by id. Asks every broker of the cluster,
        because each lists only the groups that it coordinates.

        :raises WorldError: when a broker of the cluster does not respond, or refuses the request.
        """
        metadata = await self._servers.ask_any_server(
            METADATA, {"topics": (), "allow_auto_topic_creation": False, **_WITHOUT_OPERATIONS}, self._server_timeout_s
        )
        groups: list[ListedGroup] = []
        for broker in metadata.brokers:
            address = Address(broker.host, broker.port)
            try:
                async with asyncio.timeout(self._timeout_s):
                    response = await self._servers.ask_server(
                        address, LIST_GROUPS, {"states_filter": (), "types_filter": ()}
                    )
            except TimeoutError:
                raise WorldError(f"the broker at {address} did not respond within {self._timeout_s:g} s") from None
            if response.error_code != ErrorCode.none:
                raise _make_refusal_error(f"list the groups of the broker at {address}", response.error_code)
            groups += map(_to_listed_group, response.groups)
        return sorted(groups, key=lambda group: group.group_id)

    async def describe_group(self, group_id: GroupId) -> GroupDescription | ClassicGroupDescription | None:
        """The connect group or classic group ``group_id``; None if there is no such group.

        :raises WorldError: when the group's coordinator cannot be found, does not respond or refuses the request.
        """
        try:
            return await self._describe_connect_group(group_id) or await self._describe_classic_group(group_id)
        except UnsupportedApiError:  # a broker without connect groups
            return await self._describe_classic_group(group_id)

    async def group_configs(self, group_id: GroupId) -> list[GroupConfig]:
        """The configs that can be set on a group, sorted by name; also for a group that does not exist.

        :raises WorldError: when no broker responds, or the broker refuses the request.
        """
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group_id, "configuration_keys": None}
        response = await self._servers.ask_any_server(
            DESCRIBE_CONFIGS,
            {"resources": (resource,), "include_synonyms": False, "include_documentation": True},
            self._server_timeout_s,
        )
        (result,) = response.results
        if result.error_code != ErrorCode.none:
            raise _make_refusal_error(f"read the configs of group {group_id}", result.error_code, result.error_message)
        return sorted(map(_to_group_config, result.configs), key=lambda config: config.name)

    async def alter_group_configs(self, group_id: GroupId, changes: Mapping[str, str | None]) -> None:
        """Set configs of a group, which need not exist; None deletes a config, so that the broker's value counts again.
        If one change is invalid, the broker makes none.

        :raises WorldError: when no broker responds, or the broker refuses a change.
        """
        configs = [
            {"name": name, "config_operation": _DELETE if value is None else _SET, "value": value}
            for name, value in sorted(changes.items())
        ]
        resource = {"resource_type": _GROUP_RESOURCE, "resource_name": group_id, "configs": configs}
        response = await self._servers.ask_any_server(
            INCREMENTAL_ALTER_CONFIGS, {"resources": (resource,), "validate_only": False}, self._server_timeout_s
        )
        (result,) = response.responses
        if result.error_code != ErrorCode.none:
            raise _make_refusal_error(
                f"change the configs of group {group_id}", result.error_code, result.error_message
            )

    async def remove_member(self, group_id: GroupId, member_id: MemberId, instance_id: InstanceId | None) -> None:
        """Remove a member from its group, with LeaveGroup.

        :raises WorldError: when the group's coordinator cannot be found, does not respond or refuses the request.
        """
        member = {"member_id": member_id, "group_instance_id": instance_id, "reason": _REASON}
        response = await self._ask_coordinator_while_retriable(
            LEAVE_GROUP, group_id, {"group_id": group_id, "members": (member,)}, error_code_in_leave_response
        )
        if (error := error_code_in_leave_response(response)) != ErrorCode.none:
            raise _make_refusal_error(f"remove member {member_id} of group {group_id}", error)

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _describe_connect_group(self, group_id: GroupId) -> GroupDescription | None:
        """The connect group ``group_id``; None if there is none.

        :raises UnsupportedApiError: when the coordinator does not serve connect groups.
        :raises WorldError: as :meth:`describe_group`.
        """
        entity = await self._ask_coordinator_while_retriable(
            CONNECT_GROUP_DESCRIBE,
            group_id,
            {"group_ids": (group_id,), "include_authorized_operations": False},
            lambda response: response.groups[0].error_code,
        )
        try:
            response = to_group_description_response(entity)
        except (WireError, ValueError) as error:
            raise WorldError(
                f"the coordinator of group {group_id} has sent an invalid description of the group: {error}; check "
                "that the broker and this command have the same version of Coterie"
            ) from error
        match response.error:
            case ConnectErrorCode.NONE | ConnectErrorCode.GROUP_ID_NOT_FOUND:
                return response.description
            case error_code:
                raise _make_refusal_error(f"describe group {group_id}", error_code, response.message)

    async def _describe_classic_group(self, group_id: GroupId) -> ClassicGroupDescription | None:
        """The classic group ``group_id``; None if there is none.

        :raises WorldError: as :meth:`describe_group`.
        """
        response = await self._ask_coordinator_while_retriable(
            DESCRIBE_GROUPS,
            group_id,
            {"groups": (group_id,), "include_authorized_operations": False},
            lambda answer: answer.groups[0].error_code,
        )
        (group,) = response.groups
        if group.error_code != ErrorCode.none:
            raise _make_refusal_error(f"describe group {group_id}", group.error_code)
        if group.group_state == _DEAD:
            return None
        return ClassicGroupDescription(
            state=group.group_state,
            protocol_type=group.protocol_type,
            protocol=group.protocol_data,
            members=tuple(
                ClassicMemberDescription(
                    member_id=MemberId(one.member_id),
                    instance_id=None if one.group_instance_id is None else InstanceId(one.group_instance_id),
                    client_id=one.client_id,
                    client_host=one.client_host,
                )
                for one in group.members
            ),
        )

    async def _ask_coordinator_while_retriable(
        self, api: ApiVersionRange, group_id: GroupId, values: Values, error_of: Callable[[Any], int]
    ) -> Any:
        """Send a request to the group's coordinator and return the response. While the response has an error code of
        ``_RETRIED``, the coordinator is searched for again, and the request is repeated, until the time limit.
        ``error_of`` returns the error code of a response.

        :raises WorldError: as :meth:`describe_group`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                coordinator = await self._wait_for_coordinator(group_id)
                response = await self._servers.ask_server(coordinator, api, values)
                while error_of(response) in _RETRIED:
                    await asyncio.sleep(_RETRY_INTERVAL_S)
                    coordinator = await self._wait_for_coordinator(group_id)
                    response = await self._servers.ask_server(coordinator, api, values)
                return response
        except TimeoutError:
            raise WorldError(
                f"the coordinator of group {group_id} was not found or did not respond within {self._timeout_s:g} s; "
                "check the log of the broker"
            ) from None

    async def _wait_for_coordinator(self, group_id: GroupId) -> Address:
        """The address of the group's coordinator; while there is none, asks again, without a time limit.

        :raises WorldError: when no broker responds, or this client may not use the group.
        """
        while isinstance(found := await self._finder.find(group_id, self._server_timeout_s), ErrorCode):
            if found not in _RETRIED:
                raise _make_refusal_error(f"find the coordinator of group {group_id}", found)
            await asyncio.sleep(_RETRY_INTERVAL_S)
        return found


_WITHOUT_OPERATIONS = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}


def _to_listed_group(struct: Any) -> ListedGroup:
    return ListedGroup(
        group_id=GroupId(struct.group_id),
        type=getattr(struct, "group_type", "").lower(),
        protocol_type=struct.protocol_type,
        state=getattr(struct, "group_state", ""),
    )


def _to_group_config(struct: Any) -> GroupConfig:
    return GroupConfig(
        name=struct.name,
        value=struct.value or "",
        is_set_on_group=struct.config_source == _SOURCE_GROUP,
        documentation=getattr(struct, "documentation", None) or "",
    )


def _make_refusal_error(action: str, error: ErrorCode | ConnectErrorCode, message: str | None = None) -> WorldError:
    """Build the error for a request that the broker refuses. Its text contains ``action`` (what the request was to do),
    the error code's name and the broker's message."""
    name = error.name.upper()
    hint = "; the broker's access rules do not allow it to this user" if "AUTHORIZATION_FAILED" in name else ""
    return WorldError(f"cannot {action}: {name}{f': {message}' if message else ''}{hint}")
