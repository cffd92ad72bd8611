"""Workers of a connect group, with everything simulated but the group: the coordinator of a real broker, over TCP."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self, TypeVar

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.broker.server import Broker, running_broker
from coterie.broker.settings import BrokerSettings
from coterie.cli.assignors import assign_functions_by_name, read_and_check_offered_assignor
from coterie.groups.connect.messages import GroupState
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group
from coterie.kafka.connect_coordinator import KafkaConnectCoordinatorClient
from coterie.kafka.group_admin import GroupAdmin
from coterie.member.connect.machine import step
from coterie.member.connect.messages import Request, Response, Timer
from coterie.member.connect.state import Member, MemberSettings
from coterie.nouns.ids import GroupId, MemberId, WorkerUrl
from coterie.nouns.membership import GroupProtocolName
from coterie.nouns.target_assignments import AssignFunction
from coterie.wire.connect import ConnectProtocol
from coterie.worker.membership import GroupMembership
from tests.worker.simulated import Cluster, Running

T = TypeVar("T")

GROUP_ID = GroupId("cluster")
HOLD_MS = 50
"""Short: a member that has nothing to do learns of a new group epoch at the end of a hold."""
SETTINGS = ConnectGroupSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0, connection_grace_ms=0)


class ConnectMembership(GroupMembership[Member, Request, Response, Timer]):
    """The membership that every worker of a connect group has; tells whether the worker has ordered it to leave."""

    def __init__(self, settings: MemberSettings, coordinator: KafkaConnectCoordinatorClient) -> None:
        super().__init__(step, Member(settings, None), coordinator)
        self.id = settings.member_id
        self.left = False

    async def leave(self, reason: str, *, is_permanent: bool = False) -> None:
        self.left = True
        await super().leave(reason, is_permanent=is_permanent)


class ConnectCluster(Cluster):
    """Workers that share two logs in memory and a connect group. ``folder`` is for the broker's data."""

    group_protocol = GroupProtocolName.CONNECT

    def __init__(self, folder: Path, *, rebalance_delay_max_ms: int = 0) -> None:
        super().__init__(rebalance_delay_max_ms=rebalance_delay_max_ms)
        del self.group  # the simulated one
        self._settings = BrokerSettings(data_path=folder / "broker", port=0, connect_groups=SETTINGS)
        self._stack = AsyncExitStack()
        self._broker: Broker

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._broker = await self._stack.enter_async_context(running_broker(self._settings))
        return self

    async def __aexit__(self, *exception: object) -> None:
        async with self._stack:
            await super().__aexit__(*exception)

    def join(self, url: WorkerUrl, policy: RebalancePolicy, protocol: ConnectProtocol) -> ConnectMembership:
        settings = MemberSettings(
            group_id=GROUP_ID,
            member_id=MemberId(f"member-{len(self.workers) + 1}"),
            url=url,
            assignors=(read_and_check_offered_assignor(CooperativeAssignor(policy)),),
            config_topic_id=bytes(16),
            coordinator_hold_max_ms=HOLD_MS,
        )
        coordinator = KafkaConnectCoordinatorClient([self._bootstrap], client_id="worker", request_timeout_ms=10_000)
        return ConnectMembership(settings, coordinator)

    def assignors(self, policy: RebalancePolicy) -> Mapping[str, AssignFunction]:
        return assign_functions_by_name([CooperativeAssignor(policy)])

    async def lose(self, running: Running) -> None:
        await GroupAdmin([self._bootstrap], client_id="tests").remove_member(GROUP_ID, running.membership.id, None)

    @property
    def leader_id(self) -> MemberId:
        leader_id = self._read(lambda group: group.leader)
        assert leader_id is not None
        return leader_id

    @property
    def has_begun(self) -> bool:
        return self._read(lambda group: group.group_epoch) is not None

    @property
    def settled_generation(self) -> int | None:
        return self._read(lambda group: group.group_epoch if group.group_state() is GroupState.STABLE else None)

    @property
    def _bootstrap(self) -> str:
        return f"127.0.0.1:{self._broker.port}"

    def _read(self, look: Callable[[Group], T | None]) -> T | None:
        """What ``look`` returns for the state of the group at its coordinator; None if there is no group."""
        groups = self._broker.context.connect_groups
        assert groups is not None
        return groups.inspect_group(GROUP_ID, look)
