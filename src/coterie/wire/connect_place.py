"""A worker's place in its group, as one life of its process hands it on to the next.

A process that executes itself anew is the same member to its group, as long as its heartbeats go on within the session:
no round, no delay, nothing that moves, whatever protocol the group speaks. The bytes stay on one machine, between two
processes of which one becomes the other; they are no part of any protocol.
"""

import json
from dataclasses import dataclass
from typing import Any

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect import ConnectProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a member has, and its herder knows, when nothing of it runs any more."""

    member_id: MemberId
    generation: Generation
    protocol: ConnectProtocol
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far the leader had read the configs when it dealt out ``jobs``."""
    jobs: Jobs
    deferred_until_ms: int | None = None
    """When the scheduled rebalance delay ends that runs, on the machine's steady clock, which both lives share."""
    unheard: bool = False
    """A round was under way: the group may have had a vote that the next life does not know of."""
    owes_round: bool = False
    """The next life has to ask for a round: it leads and remembers nothing, or has released or to say something."""


def encode_place(place: Place) -> bytes:
    numbers: dict[str, list[int]] = {}
    for task in sorted(place.jobs.tasks):
        numbers.setdefault(task.connector, []).append(task.task)
    return json.dumps(
        {
            "member_id": place.member_id,
            "generation": place.generation,
            "protocol": place.protocol.setting,
            "leader": place.leader,
            "leader_url": place.leader_url,
            "config_offset": place.config_offset,
            "connectors": sorted(place.jobs.connectors),
            "tasks": numbers,
            "deferred_until_ms": place.deferred_until_ms,
            "unheard": place.unheard,
            "owes_round": place.owes_round,
        }
    ).encode()


def decode_place(data: bytes) -> Place:
    """:raises WireError: when the bytes are no place."""
    try:
        said: Any = json.loads(data)
        deferred_until_ms = said["deferred_until_ms"]
        return Place(
            member_id=MemberId(said["member_id"]),
            generation=Generation(int(said["generation"])),
            protocol=ConnectProtocol.named(said["protocol"]),
            leader=MemberId(said["leader"]),
            leader_url=WorkerUrl(said["leader_url"]),
            config_offset=ConfigOffset(int(said["config_offset"])),
            jobs=Jobs(
                frozenset(map(ConnectorName, said["connectors"])),
                frozenset(
                    ConnectorTaskId(ConnectorName(connector), int(number))
                    for connector, numbers in said["tasks"].items()
                    for number in numbers
                ),
            ),
            deferred_until_ms=None if deferred_until_ms is None else int(deferred_until_ms),
            unheard=bool(said["unheard"]),
            owes_round=bool(said["owes_round"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"these bytes are no place in a group: {error!r}") from error
