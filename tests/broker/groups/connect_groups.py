"""Connect groups over a log, without connections: the registry, its log, and a member that follows the protocol."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from coterie.broker.clock import make_steady_clock_ms
from coterie.broker.groups.connect import CONNECT_TOPIC, ConnectGroups, ConnectMachine
from coterie.broker.groups.heartbeats import MemberRequestGaps
from coterie.broker.groups.log import GroupLog
from coterie.broker.groups.registry import Groups
from coterie.broker.storage.log import BrokerLog
from coterie.groups.connect.messages import DescribeGroup, DescribeGroupResponse
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.connect_groups import HeartbeatResponse
from coterie.nouns.ids import GroupId
from coterie.nouns.target_assignments import AssignFunction
from tests.groups.connect.builders import heartbeat

QUICK_SETTINGS = ConnectGroupSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0)
GROUP = GroupId("workers")


@asynccontextmanager
async def connect_groups(
    log: BrokerLog,
    assignors: Mapping[str, AssignFunction] | None = None,
    settings: ConnectGroupSettings = QUICK_SETTINGS,
) -> AsyncIterator[ConnectGroups]:
    """The connect groups in ``log``; those of the next call load what these have written."""
    used = assignors or {}
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        now_ms = make_steady_clock_ms()
        named = replace(settings, server_assignors=tuple(sorted(used)))
        machine = ConnectMachine(named, used, MemberRequestGaps(now_ms))
        groups: ConnectGroups = Groups(machine, await GroupLog.open(log, CONNECT_TOPIC), 10, tasks, now_ms)
        await groups.load()
        yield groups
        groups.close()


async def beat(groups: ConnectGroups, member: str, epoch: int = 0, **fields: Any) -> HeartbeatResponse:
    """The response to a heartbeat with all fields."""
    response = await groups.ask(GROUP, lambda reply_to: replace(heartbeat(member, epoch, **fields), reply_to=reply_to))
    assert isinstance(response, HeartbeatResponse)
    return response


async def described(groups: ConnectGroups) -> DescribeGroupResponse:
    response = await groups.ask(GROUP, lambda reply_to: DescribeGroup(reply_to=reply_to))
    assert isinstance(response, DescribeGroupResponse)
    return response
