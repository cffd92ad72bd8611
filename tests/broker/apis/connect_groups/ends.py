"""Ends of the connections of members, and what the broker and the group have then."""

import asyncio
import select
import socket
from typing import Any

from coterie.broker.context import BrokerContext
from coterie.groups.connect.messages import ConnectionGraceTimer
from coterie.nouns.ids import GroupId
from tests.broker.apis.connect_groups.worker import Worker, describe
from tests.broker.conftest import RawClient, ThreadedBroker


def end_by_fin(client: RawClient) -> None:
    """Close the connection as a client that has read all responses does: with unread bytes, a close would reset it."""
    client.socket.shutdown(socket.SHUT_WR)
    while client.socket.recv(4096):
        pass
    client.socket.close()


def has_data(client: RawClient) -> bool:
    """Whether the client can read: a response, or the end of the connection."""
    return bool(select.select([client.socket], [], [], 0)[0])


def members_on(clients: list[RawClient], **fields: Any) -> list[Worker]:
    """Members, each on its own connection."""
    workers = [Worker(client, f"w{number}", **fields) for number, client in enumerate(clients)]
    for worker in workers:
        worker.beat()
    return workers


def member_ids(client: RawClient) -> list[str]:
    return [one.member_id for one in describe(client).members]


def connections_of(broker: ThreadedBroker) -> int:
    """The number of connections that the broker serves."""

    async def count(context: BrokerContext) -> int:
        return sum(task.get_name().startswith("connection ") for task in asyncio.all_tasks())

    return broker.run(count)


def graces_of(broker: ThreadedBroker, group_id: str = "workers") -> set[str]:
    """The members whose connection has ended, and that are removed unless they send a request."""

    async def look(context: BrokerContext) -> set[str]:
        assert context.connect_groups is not None
        keys = context.connect_groups.inspect_group(GroupId(group_id), lambda group: list(group.deadlines))
        return {key.member_id for key in keys or () if isinstance(key, ConnectionGraceTimer)}

    return broker.run(look)
