"""Access rules (ACL entries), read from a text file with one rule a line.

    # a # at the start of a line or after a space begins a comment; group:pay#1 contains no comment
    super User:admin
    allow User:alice   read,write           topic:orders*
    allow User:*       describe             topic:orders  from 10.0.0.7
    deny  User:*       write                topic:orders* from 192.168.0.0/16
    deny  User:mallory all                  group:*
    allow "User:CN=loader, O=Big Co" write  topic:orders*

    super PRINCIPAL
    allow|deny PRINCIPAL OPERATION[,OPERATION…] TYPE:NAME [from ADDRESS|RANGE]

A super rule allows its principal every operation. The types are topic, group, cluster and transactional_id; the
operations are Kafka's, in lower case (read, write, create, delete, alter, describe, cluster_action, describe_configs,
alter_configs, idempotent_write, all). A name that ends in `*` is a prefix, `*` alone means all names; the cluster has
no name and is written `cluster`. A rule applies to clients from one IP address, from a range of addresses
(192.168.0.0/16), or from any address (`*`, or no `from`); host names are not supported. As in Kafka, a deny takes
precedence over any allow, an operation that no rule allows is denied, and read, write, delete and alter imply describe
(alter_configs implies describe_configs).
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

from coterie.broker.security.principals import Principal
from coterie.nouns.errors import WorldError


class Operation(StrEnum):
    """Kafka's operations; the value of each is its name in a rule. They are in the order of Kafka's codes, without gaps
    from ALL, whose code is 2."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster_action"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"


class ResourceType(StrEnum):
    """The types of resources that a rule may name."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional_id"


CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of the type CLUSTER, as in Kafka."""


_IMPLIED_BY: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""By operation: the operations that imply it. A rule that allows one of these also allows the operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """One allow or deny rule of the file."""

    allows: bool
    """Whether it is an allow rule; else it is a deny rule."""
    principal: str
    """``User:name``, or ``User:*`` for all users."""
    operations: frozenset[Operation]
    """The operations that the rule allows or denies; ALL stands for each operation."""
    resource_type: ResourceType
    resource_name_or_prefix: str
    """The resource's name; with a * at its end, the rule applies to all names that begin with the text before the *."""
    host: IPv4Network | IPv6Network | None
    """The addresses of the clients to which the rule applies; None means any address."""

    def applies_regardless_of_name(
        self, principal: Principal, operations: Iterable[Operation], type_: ResourceType, host: str
    ) -> bool:
        """Whether the rule is for ``principal`` at the IP address ``host``, for resources of this type, and for at
        least one of ``operations`` (a rule for ``all`` is for each). The resource's name is not compared: see
        :meth:`matches_name`."""
        return (
            self.resource_type is type_
            and self.principal in (str(principal), f"{principal.kind}:*")
            and (self.host is None or self._applies_to_address_or_denies_unknown(_parse_address(host)))
            and (Operation.ALL in self.operations or not self.operations.isdisjoint(operations))
        )

    def _applies_to_address_or_denies_unknown(self, address: IPv4Address | IPv6Address | None) -> bool:
        """Whether the rule, which has a ``host``, applies to a peer at ``address``. If the address is unknown (None), a
        deny rule applies and an allow rule does not."""
        # A peer whose address is unknown: no allow rule with an address applies to it, but every deny rule does.
        return not self.allows if address is None else self.host is not None and address in self.host

    def matches_name(self, name: str) -> bool:
        """Whether the rule applies to the resource with this name."""
        return (
            name.startswith(self.resource_name_or_prefix[:-1])
            if self.resource_name_or_prefix.endswith("*")
            else name == self.resource_name_or_prefix
        )


@dataclass(frozen=True, slots=True)
class Acls:
    """The access rules of one file; decides by them whether a principal may do an operation. A deny rule beats every
    allow rule. The ``super_user_principals`` may do every operation, even if a deny rule applies to them. The methods
    do not block."""

    entries: Sequence[AclEntry]
    """The allow and deny rules."""
    super_user_principals: frozenset[str]
    """The principals of the super rules, each as ``User:name``."""

    def is_allowed(self, principal: Principal, operation: Operation, type_: ResourceType, name: str, host: str) -> bool:
        """Whether ``principal``, connected from the address ``host``, may do ``operation`` on the resource of this type
        and name. As in Kafka, a deny rule beats every allow rule: a super user may; otherwise a principal to whom a
        deny rule applies may not, whatever the allow rules are; otherwise a principal to whom an allow rule for
        ``operation``, for ``all`` or for an operation that implies ``operation`` applies may. If no rule applies, the
        principal may not."""
        if str(principal) in self.super_user_principals:
            return True
        if any(
            not rule.allows and rule.matches_name(name)
            for rule in self._rules_regardless_of_name(principal, {operation}, type_, host)
        ):
            return False
        sufficient_operations = {operation, *_IMPLIED_BY.get(operation, ())}
        return any(
            rule.allows and rule.matches_name(name)
            for rule in self._rules_regardless_of_name(principal, sufficient_operations, type_, host)
        )

    def is_allowed_on_any(self, principal: Principal, operation: Operation, type_: ResourceType, host: str) -> bool:
        """Whether ``principal``, connected from the address ``host``, may do ``operation`` on at least one resource of
        this type, which need not exist. A super user may. Another principal may if an allow rule applies to it whose
        name no deny rule denies: as in :meth:`is_allowed`, a deny rule beats every allow rule. As in Kafka, only rules
        that name ``operation`` or ``all`` count, not those for an operation that implies ``operation``."""
        # As in Kafka, an allowed name counts unless a deny rule has the same name or a prefix of it.
        if str(principal) in self.super_user_principals:
            return True
        names = [
            rule.resource_name_or_prefix
            for rule in self._rules_regardless_of_name(principal, {operation}, type_, host)
            if rule.allows
        ]
        denied = [
            rule for rule in self._rules_regardless_of_name(principal, {operation}, type_, host) if not rule.allows
        ]
        return any(not any(rule.matches_name(name) for rule in denied) for name in names)

    def _rules_regardless_of_name(
        self, principal: Principal, operations: Iterable[Operation], type_: ResourceType, host: str
    ) -> list[AclEntry]:
        """The rules that apply to ``principal`` at ``host``, the type, and one of ``operations``. The resource's name
        is not compared."""
        return [rule for rule in self.entries if rule.applies_regardless_of_name(principal, operations, type_, host)]


def read_acls(path: Path) -> Acls:
    """Read the rules from the file ``path``.

    :raises WorldError: the file cannot be read or is not UTF-8, or a rule is invalid: then the message names the file,
        the line and the error.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise WorldError(f"the access rules in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(f"the access rules in {path} are not UTF-8: {error.reason} at byte {error.start}") from error
    entries: list[AclEntry] = []
    super_user_principals: set[str] = set()
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(_without_comment(line))
            if words and words[0] == "super":
                super_user_principals.add(_parse_super_user(words))
            elif words:
                entries.append(_parse_acl_entry(words))
        except ValueError as error:
            raise WorldError(f"{path}, line {number}: {error}") from None
    return Acls(tuple(entries), frozenset(super_user_principals))


# -- one line ---------------------------------------------------------------------------------------------------------


_BEFORE_COMMENT = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.#*|[^"'\\#]|(?<=\S)#)*""")
"""Matches the text before a comment: quoted text, escaped characters, and each # inside a word."""


def _without_comment(line: str) -> str:
    """``line`` without the comment at its end."""
    # `shlex` would also treat a # inside a word as the start of a comment, and silently drop the rest of a rule.
    before = _BEFORE_COMMENT.match(line)
    assert before is not None, "the pattern also matches the empty string"
    return before[0] if line.startswith("#", before.end()) else line


def _parse_super_user(words: Sequence[str]) -> str:
    """The principal of a super rule.

    :raises ValueError: the rule is invalid.
    """
    if len(words) != 2:
        raise ValueError("a super rule needs exactly one principal: super User:name")
    if words[1] == "User:*":
        raise ValueError(
            "User:* cannot be the principal of a super rule: name one user, as in super User:name; to allow every user"
            " everything, start the broker without --acl"
        )
    return _parse_principal(words[1])


def _parse_acl_entry(words: Sequence[str]) -> AclEntry:
    """An allow or deny rule from its words.

    :raises ValueError: the rule is invalid.
    """
    if words[0] not in ("allow", "deny"):
        raise ValueError(f"a rule begins with allow, deny or super, not {words[0]}")
    if len(words) not in (4, 6) or words[4:5] not in ([], ["from"]):
        raise ValueError(f"a rule is: {words[0]} PRINCIPAL OPERATIONS TYPE:NAME [from ADDRESS|RANGE]")
    type_, name = _parse_resource(words[3])
    return AclEntry(
        allows=words[0] == "allow",
        principal=_parse_principal(words[1]),
        operations=frozenset(_parse_operation(word) for word in words[2].split(",")),
        resource_type=type_,
        resource_name_or_prefix=name,
        host=_parse_host(words[5]) if len(words) == 6 else None,
    )


def _parse_principal(word: str) -> str:
    """The principal ``word``, after a check.

    :raises ValueError: ``word`` is not ``User:name`` or ``User:*``.
    """
    kind, _, name = word.partition(":")
    if kind != "User" or not name:
        raise ValueError(f"{word} is not a principal: write User:name, or User:* for all users")
    return word


def _parse_operation(word: str) -> Operation:
    """The operation with the name ``word``, in lower or upper case.

    :raises ValueError: there is no such operation.
    """
    try:
        return Operation(word.lower())
    except ValueError:
        raise ValueError(f"{word!r} is not an operation; the operations are {', '.join(Operation)}") from None


def _parse_resource(word: str) -> tuple[ResourceType, str]:
    """The type and name of the resource that ``word`` states; the name of ``cluster`` is ``*``.

    :raises ValueError: ``word`` is not a resource.
    """
    type_, colon, name = word.partition(":")
    if word == ResourceType.CLUSTER:
        return ResourceType.CLUSTER, "*"
    if type_ not in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID) or not (colon and name):
        raise ValueError(f"{word} is not a resource: write topic:NAME, group:NAME, transactional_id:NAME or cluster")
    if "*" in name[:-1]:
        raise ValueError(f"{word} has a * before its end: a * may only be the last character of a name")
    return ResourceType(type_), name


def _parse_host(word: str) -> IPv4Network | IPv6Network | None:
    """The addresses after ``from``; None for ``*``, any address.

    :raises ValueError: ``word`` is not ``*``, an IP address, or a range of addresses.
    """
    if word == "*":
        return None
    try:
        return ip_network(word)
    except ValueError as error:
        # A host name would never match an address: a deny rule with a host name would deny nothing.
        raise ValueError(
            f"after the word from, a rule needs an IP address or a range of addresses, such as 10.0.0.0/8: {error}"
        ) from None


@lru_cache(maxsize=1024)
def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address of a peer, an IPv4 address if it is mapped into IPv6; None if ``host`` is not an IP address."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
