"""The bytes in which a worker's process passes its membership in the group to the next process when it re-executes
itself.

They stay on one host, between the two processes; they are not part of any protocol.
"""

import json
from collections.abc import Mapping
from typing import Any

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupEpoch, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import ClassicMembershipHandover, ConnectMembershipHandover, Handover
from coterie.wire.connect import ConnectProtocol


def encode_membership_handover(handover: Handover) -> bytes:
    """``handover``, the membership of the worker's process in its group, as JSON for :func:`decode_membership_handover`
    in the next process."""
    match handover:
        case ClassicMembershipHandover():
            fields = _json_fields_of_classic_handover(handover)
        case ConnectMembershipHandover():
            fields = _json_fields_of_connect_handover(handover)
    return json.dumps(fields).encode()


def decode_membership_handover(data: bytes) -> Handover:
    """The membership in ``data``, which :func:`encode_membership_handover` has encoded in the previous process.

    :raises WireError: when ``data`` cannot be decoded.
    """
    try:
        fields: Any = json.loads(data)
        return _decode_connect_handover(fields) if "member_epoch" in fields else _decode_classic_handover(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"the membership from the previous process cannot be decoded: {error!r}") from error


def _json_fields_of_classic_handover(handover: ClassicMembershipHandover) -> Mapping[str, object]:
    return {
        "member_id": handover.member_id,
        "generation": handover.generation,
        "protocol": handover.protocol,
        "leader": handover.leader,
        "leader_url": handover.leader_url,
        "config_offset": handover.config_offset,
        **_json_fields_of_jobs(handover.jobs),
        "deferred_until_ms": handover.rebalance_delay_ends_ms,
        # This key keeps its name, because a worker of an earlier release may read this JSON.
        "unheard": handover.may_have_missed_protocol_change,
        "owes_round": handover.must_start_rebalance,
    }


def _decode_classic_handover(fields: Any) -> ClassicMembershipHandover:
    rebalance_delay_ends_ms = fields["deferred_until_ms"]
    return ClassicMembershipHandover(
        member_id=MemberId(fields["member_id"]),
        generation=GenerationId(int(fields["generation"])),
        protocol=ConnectProtocol.from_setting(fields["protocol"]).setting,
        leader=MemberId(fields["leader"]),
        leader_url=WorkerUrl(fields["leader_url"]),
        config_offset=ConfigOffset(int(fields["config_offset"])),
        jobs=_decode_jobs(fields),
        rebalance_delay_ends_ms=None if rebalance_delay_ends_ms is None else int(rebalance_delay_ends_ms),
        may_have_missed_protocol_change=bool(fields["unheard"]),
        must_start_rebalance=bool(fields["owes_round"]),
    )


def _json_fields_of_connect_handover(handover: ConnectMembershipHandover) -> Mapping[str, object]:
    return {
        "member_id": handover.member_id,
        "member_epoch": handover.member_epoch,
        "request_number": handover.request_number,
        "session_timeout_ms": handover.session_timeout_ms,
        "leader": handover.leader,
        "leader_url": handover.leader_url,
        "leader_epoch": handover.leader_epoch,
        "assignment_epoch": handover.assignment_epoch,
        "config_offset": handover.config_offset,
        **_json_fields_of_jobs(handover.jobs),
        "job_epochs": [
            {"epoch": epoch, **_json_fields_of_jobs(jobs)}
            for epoch, jobs in sorted(handover.jobs_by_assignment_epoch.items())
        ],
        "version": handover.version,
        "metadata": handover.metadata.hex(),
    }


def _decode_connect_handover(fields: Any) -> ConnectMembershipHandover:
    return ConnectMembershipHandover(
        member_id=MemberId(fields["member_id"]),
        member_epoch=MemberEpoch(int(fields["member_epoch"])),
        request_number=int(fields["request_number"]),
        session_timeout_ms=int(fields["session_timeout_ms"]),
        leader=MemberId(fields["leader"]),
        leader_url=WorkerUrl(fields["leader_url"]),
        leader_epoch=LeaderEpoch(int(fields["leader_epoch"])),
        assignment_epoch=GroupEpoch(int(fields["assignment_epoch"])),
        config_offset=ConfigOffset(int(fields["config_offset"])),
        jobs=_decode_jobs(fields),
        jobs_by_assignment_epoch={GroupEpoch(int(one["epoch"])): _decode_jobs(one) for one in fields["job_epochs"]},
        version=int(fields["version"]),
        metadata=bytes.fromhex(fields["metadata"]),
    )


def _json_fields_of_jobs(jobs: Jobs) -> Mapping[str, object]:
    numbers: dict[str, list[int]] = {}
    for task in sorted(jobs.tasks):
        numbers.setdefault(task.connector, []).append(task.task)
    return {"connectors": sorted(jobs.connectors), "tasks": numbers}


def _decode_jobs(fields: Any) -> Jobs:
    return Jobs(
        frozenset(map(ConnectorName, fields["connectors"])),
        frozenset(
            ConnectorTaskId(ConnectorName(connector), int(number))
            for connector, numbers in fields["tasks"].items()
            for number in numbers
        ),
    )
