"""Whether a computed target assignment is complete and consistent (K848C, "Assignment Validation")."""

from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot

ERROR_LENGTH_MAX = 1_000
"""The maximum number of characters of an assignor's error, which is stored with the group. The error may contain an id
or a name of any length that a plug-in has returned."""


def target_error(
    target: ComputedTarget, snapshot: GroupSnapshot, members_listed_twice: frozenset[MemberId], jobs_listed_twice: Jobs
) -> str | None:
    """Why ``target`` cannot be installed, in at most `ERROR_LENGTH_MAX` characters; None if it can. Each configured job
    of ``snapshot`` must be assigned to one of its members, or wait for one of its departed members, or be unplaceable
    for a reason. ``members_listed_twice`` and ``jobs_listed_twice`` are those that the request lists more than once:
    each makes the target invalid."""
    error = _full_length_target_error(target, snapshot, members_listed_twice, jobs_listed_twice)
    return None if error is None else error[:ERROR_LENGTH_MAX]


def _full_length_target_error(
    target: ComputedTarget, snapshot: GroupSnapshot, members_listed_twice: frozenset[MemberId], jobs_listed_twice: Jobs
) -> str | None:
    """The result of `target_error` before it is cut to `ERROR_LENGTH_MAX` characters; None if ``target`` can be
    installed."""
    if members_listed_twice:
        return f"it lists the member {min(members_listed_twice)} twice"
    if jobs_listed_twice:
        return f"it assigns {jobs_listed_twice.first} twice"
    if unknown := target.members.keys() - {one.member_id for one in snapshot.members}:
        return f"it has a target for {min(unknown)}, but the group had no member {min(unknown)}"
    if unknown := target.deferred.keys() - {one.member_id for one in snapshot.departed}:
        return f"it defers jobs for {min(unknown)}, but no member {min(unknown)} has left the group"
    delay_left_ms = {one.member_id: one.delay_left_ms for one in snapshot.departed}
    for member_id, deferred in sorted(target.deferred.items()):
        if deferred.delay_ms <= 0:
            return f"it defers jobs for {member_id} by {deferred.delay_ms} ms; a delay must be above 0"
        if delay_left_ms[member_id] == 0:
            return f"it defers jobs for {member_id}, whose delay is over"
    if any(not one.reason for one in target.unplaceable):
        return "it gives no reason for unplaceable jobs"
    return _coverage_error(target, snapshot.configured)


def _coverage_error(target: ComputedTarget, configured: Jobs) -> str | None:
    """Why the jobs of ``target`` are not exactly the configured ones, each once; None if they are."""
    places = [one.jobs for _, one in sorted(target.members.items())]
    places += [one.jobs for _, one in sorted(target.deferred.items())]
    places += [one.jobs for one in target.unplaceable]
    seen: set[Job] = set()
    for jobs in places:
        for some in (jobs.connectors, jobs.tasks):
            if not seen.isdisjoint(some):
                return f"it assigns {min(map(str, seen & some))} twice"
            seen |= some
    given = Jobs.of(seen)
    if missing := configured - given:
        return f"it does not assign {missing.first} ({len(missing)} jobs are missing)"
    if surplus := given - configured:
        return f"it assigns {surplus.first}, which is not configured"
    return None
