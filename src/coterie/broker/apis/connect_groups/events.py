"""Converts the requests of connect groups into events.

In a request, null or a number such as -1 means that a field has not changed; in the event it is None. This module
refuses numbers below the number that means "unchanged", and structs whose fields contradict each other; the group's
machine checks everything else.
"""

from collections import Counter
from typing import Any

from coterie.groups.connect.messages import DescribeGroup, Heartbeat, InstallAssignment, PrepareAssignment
from coterie.nouns.connect_groups import Claims, ConfiguredJobs, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.target_assignments import ComputedTarget, DeferredJobs, TargetOfMember, UnplaceableJobs
from coterie.wire.connect_group_jobs import InvalidFieldError, distinct_jobs_in_arrays, listed_jobs

NO_REPLY = ReplyTo(0)
"""The ``reply_to`` of an event that was converted from a request before the coordinator has assigned a reply id."""
_UNCHANGED = -1
"""In a request: a number that has not changed, or a duration that is not given."""
_UNCHANGED_CONFIG_OFFSET = -2
"""In a request: a config offset that has not changed. (-1 is the config offset of a worker before its first read.)"""


def heartbeat_event(body: Any, *, reply_to: ReplyTo, connection: int, client_id: str, client_host: str) -> Heartbeat:
    """The event of a ConnectGroupHeartbeat request.

    :raises InvalidFieldError: when a field has a value that the protocol does not allow.
    """
    return Heartbeat(
        reply_to=reply_to,
        connection_number=connection,
        client_id=client_id,
        client_host=client_host,
        member_id=MemberId(body.member_id),
        member_epoch=MemberEpoch(body.member_epoch),
        request_number=body.request_number,
        instance_id=None if body.instance_id is None else InstanceId(body.instance_id),
        rebalance_timeout_ms=_none_if_unchanged("RebalanceTimeoutMs", body.rebalance_timeout_ms),
        server_assignor=body.server_assignor,
        client_assignors=None if body.client_assignors is None else tuple(map(_to_assignor, body.client_assignors)),
        owned=None if body.connectors_and_tasks is None else distinct_jobs_in_arrays(body.connectors_and_tasks),
        url=None if body.url is None else WorkerUrl(body.url),
        name=body.name,
        config_offset=_config_offset_or_none_if_unchanged(body.config_offset),
        config_topic_id=None if body.config_topic_id is None else body.config_topic_id.bytes,
        configured=None if body.configured.value is None else _to_configured_jobs(body.configured.value),
        claims=None if body.claims.value is None else _to_claims(body.claims.value),
        draining=_draining_or_none_if_unchanged(body.draining),
        max_wait_ms=body.max_wait_ms,
        connection_grace_ms=_none_if_unchanged("ConnectionGraceMs", body.connection_grace_ms),
        resumes=body.resumes,
    )


def prepare_assignment_event(body: Any, *, reply_to: ReplyTo) -> PrepareAssignment:
    """The event of a ConnectGroupPrepareAssignment request."""
    return PrepareAssignment(
        reply_to=reply_to, member_id=MemberId(body.member_id), member_epoch=MemberEpoch(body.member_epoch)
    )


def install_assignment_event(body: Any, *, reply_to: ReplyTo) -> InstallAssignment:
    """The event of a ConnectGroupInstallAssignment request. Its ``jobs_listed_twice`` are the jobs that the request
    lists more than once, whether for members, for departed members or as unplaceable. Its ``members_listed_twice`` are
    those listed more than once among the members, or among the departed members.

    :raises InvalidFieldError: when a field has a value that the protocol does not allow.
    """
    return InstallAssignment(
        reply_to=reply_to,
        member_id=MemberId(body.member_id),
        member_epoch=MemberEpoch(body.member_epoch),
        group_epoch=GroupEpoch(body.group_epoch),
        assignor_error=body.error,
        target=_to_computed_target(body),
        members_listed_twice=_duplicate_member_ids(body.members) | _duplicate_member_ids(body.deferred),
        jobs_listed_twice=listed_jobs(
            [*(one.connectors_and_tasks for one in body.members), *body.deferred, *body.unplaceable]
        ).jobs_listed_twice,
    )


def describe_event(*, reply_to: ReplyTo) -> DescribeGroup:
    """The event of one group of a ConnectGroupDescribe request."""
    return DescribeGroup(reply_to=reply_to)


# -- structs ----------------------------------------------------------------------------------------------------------


def _to_assignor(struct: Any) -> SupportedAssignor:
    """Convert one client-side assignor of a heartbeat request."""
    return SupportedAssignor(
        name=struct.name,
        minimum_version=struct.minimum_version,
        maximum_version=struct.maximum_version,
        reason=struct.reason,
        version=struct.version,
        metadata=struct.metadata,
    )


def _to_configured_jobs(struct: Any) -> ConfiguredJobs:
    """Convert the configured jobs of a heartbeat request.

    :raises InvalidFieldError: when the config offset is below -1, or a job is not valid.
    """
    return ConfiguredJobs(
        config_offset=ConfigOffset(_check_at_least(-1, "Configured.ConfigOffset", struct.config_offset)),
        jobs=distinct_jobs_in_arrays(struct),
    )


def _to_claims(struct: Any) -> Claims:
    """Convert the claims of a heartbeat request: the only jobs that the worker may run, or (``wildcard``) any job.

    :raises InvalidFieldError: when a job is not valid, or ``wildcard`` is true and jobs are listed as well.
    """
    jobs = distinct_jobs_in_arrays(struct)
    if not struct.wildcard:
        return Claims(jobs=jobs)
    if jobs:
        raise InvalidFieldError("the field Claims has Wildcard, but also lists jobs; send one of the two")
    return Claims()


def _to_computed_target(body: Any) -> ComputedTarget:
    """The target assignment in ``body``, the body of a ConnectGroupInstallAssignment request.

    :raises InvalidFieldError: when a job or a number in it is not valid.
    """
    return ComputedTarget(
        members={
            MemberId(one.member_id): TargetOfMember(
                jobs=distinct_jobs_in_arrays(one.connectors_and_tasks), version=one.version, metadata=one.metadata
            )
            for one in body.members
        },
        deferred={
            MemberId(one.member_id): DeferredJobs(
                jobs=distinct_jobs_in_arrays(one), delay_ms=_check_at_least(0, "Deferred.DelayMs", one.delay_ms)
            )
            for one in body.deferred
        },
        unplaceable=tuple(
            UnplaceableJobs(jobs=distinct_jobs_in_arrays(one), reason=one.reason) for one in body.unplaceable
        ),
        next_in_ms=_none_if_unchanged("NextInMs", body.next_in_ms),
    )


def _duplicate_member_ids(structs: Any) -> frozenset[MemberId]:
    """The member ids that occur in more than one of ``structs``."""
    counts = Counter(one.member_id for one in structs)
    return frozenset(MemberId(member_id) for member_id, count in counts.items() if count > 1)


# -- numbers ----------------------------------------------------------------------------------------------------------


def _none_if_unchanged(field: str, value: int) -> int | None:
    """``value``, the value of the request's field ``field``; None for -1, which means that the value has not changed
    since the last request or, for NextInMs, that no value is given.

    :raises InvalidFieldError: when ``value`` is below -1.
    """
    return None if value == _UNCHANGED else _check_at_least(_UNCHANGED, field, value)


def _config_offset_or_none_if_unchanged(value: int) -> ConfigOffset | None:
    """The config offset in a heartbeat's field, whose value is ``value``; None for -2, which means that it has not
    changed. -1 is the config offset of a worker before its first read.

    :raises InvalidFieldError: when ``value`` is below -2.
    """
    if value == _UNCHANGED_CONFIG_OFFSET:
        return None
    return ConfigOffset(_check_at_least(_UNCHANGED_CONFIG_OFFSET, "ConfigOffset", value))


def _draining_or_none_if_unchanged(value: int) -> bool | None:
    """Whether the worker is being drained: True for 1, False for 0; None for -1, which means that this has not changed.

    :raises InvalidFieldError: when the value is neither -1, 0 nor 1.
    """
    if value > 1:
        raise InvalidFieldError(f"the field Draining is {value}; the highest allowed value is 1")
    return None if value == _UNCHANGED else bool(_check_at_least(_UNCHANGED, "Draining", value))


def _check_at_least(lowest: int, field: str, value: int) -> int:
    """Check that ``value``, the value of the request's field ``field``, is at least ``lowest``, and return it.

    :raises InvalidFieldError: when ``value`` is less.
    """
    if value < lowest:
        raise InvalidFieldError(f"the field {field} is {value}; the lowest allowed value is {lowest}")
    return value
