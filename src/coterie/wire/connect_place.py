"""The bytes in which a worker's process passes its membership in the group to the next process when it re-executes
itself.

They stay on one host, between the two processes; they are not part of any protocol.
"""

import json
from typing import Any

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect import ConnectProtocol


def encode_place(place: PlaceHandover) -> bytes:
    """``place`` as JSON, for :func:`decode_place` in the next process."""
    numbers: dict[str, list[int]] = {}
    for task in sorted(place.jobs.tasks):
        numbers.setdefault(task.connector, []).append(task.task)
    return json.dumps(
        {
            "member_id": place.member_id,
            "generation": place.generation,
            "protocol": place.protocol,
            "leader": place.leader,
            "leader_url": place.leader_url,
            "config_offset": place.config_offset,
            "connectors": sorted(place.jobs.connectors),
            "tasks": numbers,
            "deferred_until_ms": place.deferred_until_ms,
            "unheard": place.may_have_missed_vote,
            "owes_round": place.must_ask_for_round,
        }
    ).encode()


def decode_place(data: bytes) -> PlaceHandover:
    """The membership in ``data``, which :func:`encode_place` has encoded in the previous process.

    :raises WireError: when ``data`` cannot be decoded.
    """
    try:
        said: Any = json.loads(data)
        deferred_until_ms = said["deferred_until_ms"]
        return PlaceHandover(
            member_id=MemberId(said["member_id"]),
            generation=Generation(int(said["generation"])),
            protocol=ConnectProtocol.from_setting(said["protocol"]).setting,
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
            may_have_missed_vote=bool(said["unheard"]),
            must_ask_for_round=bool(said["owes_round"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"the membership from the previous process cannot be decoded: {error!r}") from error
