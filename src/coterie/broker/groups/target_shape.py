"""Checks whether the result of an assignor has the types of a target assignment. Only then can the coordinator check
the target and write its records. The assignor may be a plug-in that returns any object."""

from collections.abc import Mapping

from coterie.nouns.jobs import ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import ComputedTarget, DeferredJobs, TargetOfMember, UnplaceableJobs

_INT16 = range(-(2**15), 2**15)
_DURATIONS_MS = range(2**31)
"""The durations that a response can contain, in ms; ``_INT16`` has the versions that a response can contain."""


def target_shape_error(result: object) -> str | None:
    """Why ``result`` is not a `ComputedTarget` with values of the right types; None if it is one."""
    if not isinstance(result, ComputedTarget):
        return f"the assignor's result is a {type(result).__name__} instead of a ComputedTarget"
    if not (_is_mapping_by_id(result.members) and all(map(_is_target_of_member, result.members.values()))):
        return "in the assignor's result, members must map each member id to a TargetOfMember with values of its types"
    if not (_is_mapping_by_id(result.deferred) and all(map(_is_deferred_jobs, result.deferred.values()))):
        return (
            "in the assignor's result, deferred must map each member id to DeferredJobs, with a delay_ms between 0 and"
            f" {2**31 - 1}"
        )
    if not (isinstance(result.unplaceable, tuple) and all(map(_is_unplaceable_jobs, result.unplaceable))):
        return "in the assignor's result, unplaceable must be a tuple of UnplaceableJobs"
    if not (result.next_in_ms is None or _is_int_in_range(result.next_in_ms, _DURATIONS_MS)):
        return (
            f"in the assignor's result, next_in_ms is {result.next_in_ms!r}, and must be None or between 0 and"
            f" {2**31 - 1}"
        )
    return None


def _is_mapping_by_id(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_target_of_member(value: object) -> bool:
    return (
        isinstance(value, TargetOfMember)
        and _are_jobs(value.jobs)
        and _is_int_in_range(value.version, _INT16)
        and isinstance(value.metadata, bytes)
    )


def _is_deferred_jobs(value: object) -> bool:
    return isinstance(value, DeferredJobs) and _are_jobs(value.jobs) and _is_int_in_range(value.delay_ms, _DURATIONS_MS)


def _is_unplaceable_jobs(value: object) -> bool:
    return isinstance(value, UnplaceableJobs) and _are_jobs(value.jobs) and isinstance(value.reason, str)


def _are_jobs(value: object) -> bool:
    return (
        isinstance(value, Jobs)
        and isinstance(value.connectors, frozenset)
        and isinstance(value.tasks, frozenset)
        and all(isinstance(one, str) for one in value.connectors)
        and all(isinstance(one, ConnectorTaskId) for one in value.tasks)
    )


def _is_int_in_range(value: object, allowed: range) -> bool:
    return isinstance(value, int) and value in allowed
