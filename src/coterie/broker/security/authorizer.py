"""Access rules (ACL entries), read from a text file with one rule a line.

    # a # at the start of a line or after a space begins a comment; group:pay#1 holds none
    super User:admin
    allow User:alice   read,write           topic:orders*
    allow User:*       describe             topic:orders  from 10.0.0.7
    deny  User:*       write                topic:orders* from 192.168.0.0/16
    deny  User:mallory all                  group:*
    allow "User:CN=loader, O=Big Co" write  topic:orders*

    super PRINCIPAL
    allow|deny PRINCIPAL OPERATION[,OPERATION…] TYPE:NAME [from ADDRESS|RANGE]

The types are topic, group, cluster and transactional_id; the operations are Kafka's, in lower case (read, write,
create, delete, alter, describe, cluster_action, describe_configs, alter_configs, idempotent_write, all). A name that
ends in `*` is a prefix, `*` alone means all names; the cluster has no name and is written `cluster`. A rule applies to
clients from one IP address, from a range of addresses (192.168.0.0/16), or from any address (`*`, or no `from`); host
names are not supported. As in Kafka, a deny takes precedence over any allow, an operation that no rule allows is
denied, and read, write, delete and alter imply describe (alter_configs implies describe_configs).
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
    """Kafka's operations, in the order of Kafka's codes, from 2; the value is the operation's name in a rule."""

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
    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional_id"


THE_CLUSTER = "kafka-cluster"
"""Kafka's resource name of the cluster."""


_BROUGHT_BY: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""The other operations that imply this operation when they are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of the file."""

    allows: bool
    principal: str
    operations: frozenset[Operation]
    type_: ResourceType
    name: str
    host: IPv4Network | IPv6Network | None
    """The addresses that the rule applies to; None means any address."""

    def meets(self, who: Principal, wanted: Iterable[Operation], type_: ResourceType, host: str) -> bool:
        """Whether the rule applies to ``who`` from ``host``, one of the operations and the type, for any name."""
        return (
            self.type_ is type_
            and self.principal in (str(who), f"{who.kind}:*")
            and (self.host is None or self._holds(_address(host)))
            and (Operation.ALL in self.operations or not self.operations.isdisjoint(wanted))
        )

    def _holds(self, address: IPv4Address | IPv6Address | None) -> bool:
        # A peer whose address is unknown: no allow rule with an address applies to it, but every deny rule does.
        return not self.allows if address is None else self.host is not None and address in self.host

    def covers(self, name: str) -> bool:
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


@dataclass(frozen=True, slots=True)
class Rules:
    """Decides whether a principal may do an operation; called on the event loop."""

    rules: Sequence[Rule]
    super_users: frozenset[str]

    def may(self, who: Principal, operation: Operation, type_: ResourceType, name: str, host: str) -> bool:
        """Whether ``who``, connected from ``host``, may do ``operation`` on the resource."""
        if str(who) in self.super_users:
            return True
        if any(not rule.allows and rule.covers(name) for rule in self._met(who, {operation}, type_, host)):
            return False
        wanted = {operation, *_BROUGHT_BY.get(operation, ())}
        return any(rule.allows and rule.covers(name) for rule in self._met(who, wanted, type_, host))

    def may_anywhere(self, who: Principal, operation: Operation, type_: ResourceType, host: str) -> bool:
        """Whether ``who`` may do ``operation`` on at least one possible resource of the type."""
        # As in Kafka, an allowed name counts unless a deny rule has the same name or a prefix of it.
        if str(who) in self.super_users:
            return True
        names = [rule.name for rule in self._met(who, {operation}, type_, host) if rule.allows]
        denied = [rule for rule in self._met(who, {operation}, type_, host) if not rule.allows]
        return any(not any(rule.covers(name) for rule in denied) for name in names)

    def _met(self, who: Principal, wanted: Iterable[Operation], type_: ResourceType, host: str) -> list[Rule]:
        return [rule for rule in self.rules if rule.meets(who, wanted, type_, host)]


def read_rules(path: Path) -> Rules:
    """Read the rules from a file.

    :raises WorldError: the file is unreadable or a rule is invalid; the message names the file, the line and the error.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise WorldError(f"the access rules in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(f"the access rules in {path} are not UTF-8: {error.reason} at byte {error.start}") from error
    rules: list[Rule] = []
    super_users: set[str] = set()
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(_without_comment(line))
            if words and words[0] == "super":
                super_users.add(_super_user(words))
            elif words:
                rules.append(_rule(words))
        except ValueError as error:
            raise WorldError(f"{path}, line {number}: {error}") from None
    return Rules(tuple(rules), frozenset(super_users))


# -- one line ---------------------------------------------------------------------------------------------------------


_BEFORE_COMMENT = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.#*|[^"'\\#]|(?<=\S)#)*""")
"""Text up to a comment: quoted text, escaped characters, and each # inside a word."""


def _without_comment(line: str) -> str:
    # `shlex` would also treat a # inside a word as the start of a comment, and silently drop the rest of a rule.
    before = _BEFORE_COMMENT.match(line)
    assert before is not None, "the pattern also matches the empty string"
    return before[0] if line.startswith("#", before.end()) else line


def _super_user(words: Sequence[str]) -> str:
    if len(words) != 2:
        raise ValueError("super needs exactly one principal: super User:name")
    if words[1] == "User:*":
        raise ValueError(
            "super needs one principal, not all users: to allow every user everything, start the broker without --acl"
        )
    return _principal(words[1])


def _rule(words: Sequence[str]) -> Rule:
    if words[0] not in ("allow", "deny"):
        raise ValueError(f"a rule begins with allow, deny or super, not {words[0]}")
    if len(words) not in (4, 6) or words[4:5] not in ([], ["from"]):
        raise ValueError(f"a rule is: {words[0]} PRINCIPAL OPERATIONS TYPE:NAME [from ADDRESS|RANGE]")
    type_, name = _resource(words[3])
    return Rule(
        allows=words[0] == "allow",
        principal=_principal(words[1]),
        operations=frozenset(_operation(word) for word in words[2].split(",")),
        type_=type_,
        name=name,
        host=_host(words[5]) if len(words) == 6 else None,
    )


def _principal(word: str) -> str:
    kind, _, name = word.partition(":")
    if kind != "User" or not name:
        raise ValueError(f"{word} is not a principal: write User:name, or User:* for all users")
    return word


def _operation(word: str) -> Operation:
    try:
        return Operation(word.lower())
    except ValueError:
        raise ValueError(f"{word!r} is not an operation; the operations are {', '.join(Operation)}") from None


def _resource(word: str) -> tuple[ResourceType, str]:
    type_, colon, name = word.partition(":")
    if word == ResourceType.CLUSTER:
        return ResourceType.CLUSTER, "*"
    if type_ not in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID) or not (colon and name):
        raise ValueError(f"{word} is not a resource: write topic:NAME, group:NAME, transactional_id:NAME or cluster")
    if "*" in name[:-1]:
        raise ValueError(f"{word} has a * before its end: a * may only be the last character of a name")
    return ResourceType(type_), name


def _host(word: str) -> IPv4Network | IPv6Network | None:
    if word == "*":
        return None
    try:
        return ip_network(word)
    except ValueError as error:
        # A host name would never match an address: a deny rule with a host name would deny nothing.
        raise ValueError(f"from needs an IP address or a range of addresses, such as 10.0.0.0/8: {error}") from None


@lru_cache(maxsize=1024)
def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address of a peer; None if ``host`` is not an IP address."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
