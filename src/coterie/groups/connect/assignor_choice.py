"""Which assignor a group uses, and which members can run it (K848C, "Assignor Selection" and "Worker Selection")."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Self, TypeAlias

from coterie.groups.connect.messages import MemberRecord
from coterie.nouns.connect_groups import SupportedAssignor
from coterie.nouns.ids import MemberId

DEFAULT_SERVER_ASSIGNOR = "cooperative"
"""The coordinator's assignor if no member names one."""


def common_client_assignor(members: Collection[MemberRecord]) -> str | None:
    """The client-side assignor that all ``members`` support. Among several, the one with the smallest sum of its
    positions in the members' lists, which are ordered by preference; then the first by name. None if there is no such
    assignor."""
    names = [[assignor.name for assignor in member.client_assignors] for member in members]
    if not names:
        return None
    common = set(names[0]).intersection(*names[1:])
    return min(common, key=lambda name: (sum(one.index(name) for one in names), name), default=None)


def most_named_server_assignor_or_default(members: Iterable[MemberRecord]) -> str:
    """The coordinator's assignor that most members name; among several, the first by name. `DEFAULT_SERVER_ASSIGNOR` if
    no member names one."""
    named = Counter(member.server_assignor for member in members if member.server_assignor is not None)
    return min(named, key=lambda name: (-named[name], name), default=DEFAULT_SERVER_ASSIGNOR)


def offered_assignor(member: MemberRecord, name: str) -> SupportedAssignor | None:
    """The assignor ``name`` of the member; None if the member does not support it."""
    return next((assignor for assignor in member.client_assignors if assignor.name == name), None)


def members_reading_all_versions(members: Sequence[MemberRecord], name: str) -> list[MemberId]:
    """The members whose assignor ``name`` reads the metadata versions of all members' assignors of this name, in the
    order of ``members``."""
    ranges = [(one.member_id, assignor) for one in members if (assignor := offered_assignor(one, name)) is not None]
    needed = _enclosing_version_range(MetadataVersionRange.of_assignor(assignor) for _, assignor in ranges)
    return [
        member_id
        for member_id, assignor in ranges
        if MetadataVersionRange.of_assignor(assignor).contains_versions_of(needed)
    ]


class MetadataVersionRange(NamedTuple):
    """The metadata versions that one assignor can read."""

    assignor_name: str
    minimum: int
    maximum: int

    @classmethod
    def of_assignor(cls, assignor: SupportedAssignor) -> Self:
        return cls(assignor.name, assignor.minimum_version, assignor.maximum_version)

    def contains_versions_of(self, other: "MetadataVersionRange") -> bool:
        """Whether this assignor reads all versions that ``other`` reads."""
        return self.minimum <= other.minimum and self.maximum >= other.maximum


Offer: TypeAlias = tuple[MetadataVersionRange, ...]
"""The client-side assignors of a member, each with the metadata versions that it can read. The members of a group have
few different offers, often only one."""


def offered_assignor_versions(member: MemberRecord) -> Offer:
    """The client-side assignors of ``member``, each with the metadata versions that it can read; empty if the member
    names an assignor of the coordinator instead."""
    return tuple(map(MetadataVersionRange.of_assignor, member.client_assignors))


def incompatible_assignors_error(others: Collection[Offer], changed: Offer) -> str | None:
    """Why a group whose members have the offers ``others`` cannot accept a member with the offer ``changed``; None if
    it can. A member that names an assignor of the coordinator accepts every client-side assignor of the others."""
    if not changed:
        return None
    offers = [one for one in (*others, changed) if one]
    common = set.intersection(*({versions.assignor_name for versions in one} for one in offers))
    names = ", ".join(versions.assignor_name for versions in changed)
    if not common:
        other_names = ", ".join(sorted({versions.assignor_name for one in others for versions in one}))
        return (
            f"the other members of the group support the assignors {other_names}, and this worker supports {names}; "
            "set a common assignor in group.local.assignors"
        )
    for name in common:
        ranges = [versions for one in offers for versions in one if versions.assignor_name == name]
        if any(versions.contains_versions_of(_enclosing_version_range(ranges)) for versions in ranges):
            return None
    return (
        f"with this worker, no member's assignor ({', '.join(sorted(common))}) can read the metadata versions of all "
        "members; check that this worker's version of the assignor can work with the others"
    )


def _enclosing_version_range(ranges: Iterable[MetadataVersionRange]) -> MetadataVersionRange:
    """The smallest range that contains all ``ranges``, which belong to the same assignor; 0 to 0 without ranges. Its
    name is empty."""
    known = list(ranges)
    return MetadataVersionRange(
        "", min((one.minimum for one in known), default=0), max((one.maximum for one in known), default=0)
    )
