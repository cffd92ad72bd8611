"""How the invariant checks identify the members of a group."""

from typing import TypeAlias

from coterie.nouns.ids import InstanceId, MemberId

MemberIdentity: TypeAlias = InstanceId | MemberId
"""A static member's instance id, which its next member id keeps; the member id of any other member."""
