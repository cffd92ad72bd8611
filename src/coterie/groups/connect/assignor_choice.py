"""Which assignor a group uses, and which members can run it (K848C, "Assignor Selection" and "Worker Selection")."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from coterie.groups.connect.messages import MemberMetadata
from coterie.nouns.connect_groups import Assignor
from coterie.nouns.ids import MemberId

DEFAULT_SERVER_ASSIGNOR = "cooperative"
"""The coordinator's assignor if no member names one."""


def common_assignor(members: Collection[MemberMetadata]) -> str | None:
    """The client-side assignor that all ``members`` support; among several, the one with the best sum of the members'
    preferences, then the first by name. None if there is no such assignor."""
    names = [[assignor.name for assignor in member.client_assignors] for member in members]
    if not names:
        return None
    common = set(names[0]).intersection(*names[1:])
    return min(common, key=lambda name: (sum(one.index(name) for one in names), name), default=None)


def server_assignor(members: Iterable[MemberMetadata]) -> str:
    """The coordinator's assignor that most members name, then the first by name."""
    named = Counter(member.server_assignor for member in members if member.server_assignor is not None)
    return min(named, key=lambda name: (-named[name], name), default=DEFAULT_SERVER_ASSIGNOR)


def offered(member: MemberMetadata, name: str) -> Assignor | None:
    """The assignor ``name`` of the member; None if the member does not support it."""
    return next((assignor for assignor in member.client_assignors if assignor.name == name), None)


def covering_members(members: Sequence[MemberMetadata], name: str) -> list[MemberId]:
    """The members whose assignor ``name`` reads the metadata versions of all members' assignors of this name, in the
    order of ``members``."""
    ranges = [(one.member_id, assignor) for one in members if (assignor := offered(one, name)) is not None]
    if not ranges:
        return []
    oldest = min(assignor.minimum_version for _, assignor in ranges)
    newest = max(assignor.maximum_version for _, assignor in ranges)
    return [
        member_id
        for member_id, assignor in ranges
        if assignor.minimum_version <= oldest and assignor.maximum_version >= newest
    ]


def unsupported_reason(others: Sequence[MemberMetadata], changed: MemberMetadata) -> str | None:
    """Why a group of the members ``others`` cannot accept ``changed``, a new member or new metadata of a member; None
    if it can. Members that name an assignor of the coordinator support every client-side one of the others."""
    if not changed.client_assignors:
        return None
    members = [one for one in (*others, changed) if one.client_assignors]
    common = set.intersection(*({assignor.name for assignor in one.client_assignors} for one in members))
    names = ", ".join(assignor.name for assignor in changed.client_assignors)
    if not common:
        theirs = ", ".join(sorted({assignor.name for one in others for assignor in one.client_assignors}))
        return f"the other members of the group support the assignors {theirs}, and this worker supports {names}"
    if not any(covering_members(members, name) for name in common):
        return (
            f"no member of the group would read the metadata versions of all members' assignors "
            f"{', '.join(sorted(common))}; check that this worker's version can work with the others"
        )
    return None
