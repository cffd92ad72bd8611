"""Checks whether the result of an assignor has the types of a target assignment. Only then can a worker send it, and
can the coordinator check it and write its records. The assignor may be a plug-in that returns any object."""

from collections.abc import Mapping
from dataclasses import replace

from coterie.nouns.jobs import ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import ComputedTarget, DeferredJobs, TargetOfMember, UnplaceableJobs
from coterie.nouns.text import without_lone_surrogates

_INT16_RANGE = range(-(2**15), 2**15)
_DURATION_MS_RANGE = range(2**31)
"""The durations that a response can contain, in ms; ``_INT16_RANGE`` has the versions that a response can contain."""
_TASK_NUMBER_RANGE = range(2**31)
_SHOWN_NUMBER_RANGE = range(-(2**63), 2**63)
_REASON_LENGTH_MAX = 1_000
"""The maximum number of characters of the reason of unplaceable jobs, which is stored with the group."""


def check_and_copy_target(result: object) -> ComputedTarget:
    """The target in ``result``, which an assignor has returned, as a copy: a later change of the mappings in ``result``
    does not change the target. In a reason, U+FFFD takes the place of half of a surrogate pair, and the text is cut at
    1,000 characters.

    :raises TypeError: when ``result`` is not a `ComputedTarget` with values of the right types; when a number does not
        fit into the protocol's field; or when an id or a name contains half of a surrogate pair, which cannot be sent
        or stored.
    """
    error = _target_shape_error(result)
    if error is not None:
        raise TypeError(error)
    assert isinstance(result, ComputedTarget)
    return replace(
        result,
        members=dict(result.members),
        deferred=dict(result.deferred),
        unplaceable=tuple(
            replace(one, reason=without_lone_surrogates(one.reason[:_REASON_LENGTH_MAX])) for one in result.unplaceable
        ),
    )


def _target_shape_error(result: object) -> str | None:
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
    if not (result.next_in_ms is None or _is_int_in_range(result.next_in_ms, _DURATION_MS_RANGE)):
        return (
            f"in the assignor's result, next_in_ms is {_number_or_type_text(result.next_in_ms)}, and must be None or"
            f" between 0 and {2**31 - 1}"
        )
    return None


def _is_mapping_by_id(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_encodable_text, value))


def _is_target_of_member(value: object) -> bool:
    return (
        isinstance(value, TargetOfMember)
        and _are_jobs(value.jobs)
        and _is_int_in_range(value.version, _INT16_RANGE)
        and isinstance(value.metadata, bytes)
    )


def _is_deferred_jobs(value: object) -> bool:
    return (
        isinstance(value, DeferredJobs)
        and _are_jobs(value.jobs)
        and _is_int_in_range(value.delay_ms, _DURATION_MS_RANGE)
    )


def _is_unplaceable_jobs(value: object) -> bool:
    return isinstance(value, UnplaceableJobs) and _are_jobs(value.jobs) and isinstance(value.reason, str)


def _are_jobs(value: object) -> bool:
    return (
        isinstance(value, Jobs)
        and isinstance(value.connectors, frozenset)
        and isinstance(value.tasks, frozenset)
        and all(map(_is_encodable_text, value.connectors))
        and all(
            isinstance(one, ConnectorTaskId)
            and _is_encodable_text(one.connector)
            and _is_int_in_range(one.task, _TASK_NUMBER_RANGE)
            for one in value.tasks
        )
    )


def _is_encodable_text(value: object) -> bool:
    """Whether ``value`` is a str without half of a surrogate pair, so that it can be encoded in UTF-8."""
    return isinstance(value, str) and (value.isascii() or value == without_lone_surrogates(value))


def _is_int_in_range(value: object, allowed: range) -> bool:
    # Not `in`: for a subclass of int that would go through the whole range.
    return isinstance(value, int) and allowed.start <= value < allowed.stop


def _number_or_type_text(value: object) -> str:
    """``value`` as text for an error message: a number of up to 64 bits itself; of any other value only the type,
    because the text of such a value may be very long, and may raise an exception."""
    if _is_int_in_range(value, _SHOWN_NUMBER_RANGE):
        return str(value)
    return f"a {type(value).__name__}" if not isinstance(value, int) else "an int with more than 64 bits"
