"""How the invariant checks identify a member of a group over its restarts."""

from typing import TypeAlias

from coterie.nouns.ids import InstanceId, MemberId

MemberIdentity: TypeAlias = InstanceId | MemberId
"""A static member's instance id, which stays when its member id changes; the member id of any other member."""
