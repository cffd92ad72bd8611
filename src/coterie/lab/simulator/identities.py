"""How the watches tell the members of a group apart."""

from typing import TypeAlias

from coterie.nouns.ids import InstanceId, MemberId

MemberIdentity: TypeAlias = InstanceId | MemberId
"""A static member's instance id, which its next member has too; the member id of any other member."""
