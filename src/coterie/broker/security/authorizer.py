"""The access rules of a file, one a line, that people can read.

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
ends in `*` means all that begin so, `*` alone means all; the cluster has no name, it is just `cluster`. A peer is known
by its IP address alone: a rule comes from one, from a range of them (192.168.0.0/16), or from anywhere (`*`, or no
`from` at all). As in Kafka, a deny counts more than any allow, what no rule allows is denied, and read, write, delete
and alter bring describe with them (alter_configs brings describe_configs).
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
    """Kafka's, in the order of Kafka's numbers, from 2; the value is the word of a rule."""

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
"""Its name, where one is asked for."""


_BROUGHT_BY: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Which other operation, when allowed, allows this one, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the file."""

    allows: bool
    principal: str
    operations: frozenset[Operation]
    type_: ResourceType
    name: str
    host: IPv4Network | IPv6Network | None
    """Whence; None means from anywhere."""

    def meets(self, who: Principal, wanted: Iterable[Operation], type_: ResourceType, host: str) -> bool:
        """Whether it speaks of ``who``, one of the operations and the type, whatever the resource is called."""
        return (
            self.type_ is type_
            and self.principal in (str(who), f"{who.kind}:*")
            and (self.host is None or self._holds(_address(host)))
            and (Operation.ALL in self.operations or not self.operations.isdisjoint(wanted))
        )

    def _holds(self, address: IPv4Address | IPv6Address | None) -> bool:
        # Whose address is not known has one all the same: it may do no more for that.
        return not self.allows if address is None else self.host is not None and address in self.host

    def covers(self, name: str) -> bool:
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


@dataclass(frozen=True, slots=True)
class Rules:
    """Decides who may do what; called on the event loop."""

    rules: Sequence[Rule]
    super_users: frozenset[str]

    def may(self, who: Principal, operation: Operation, type_: ResourceType, name: str, host: str) -> bool:
        """Whether ``who``, coming from ``host``, may do ``operation`` on the resource."""
        if str(who) in self.super_users:
            return True
        if any(not rule.allows and rule.covers(name) for rule in self._met(who, {operation}, type_, host)):
            return False
        wanted = {operation, *_BROUGHT_BY.get(operation, ())}
        return any(rule.allows and rule.covers(name) for rule in self._met(who, wanted, type_, host))

    def may_anywhere(self, who: Principal, operation: Operation, type_: ResourceType, host: str) -> bool:
        """Whether there is any resource of the type on which ``who`` may do ``operation``."""
        # As in Kafka, an allowed name counts unless it is denied as well, or a denied prefix holds it.
        if str(who) in self.super_users:
            return True
        names = [rule.name for rule in self._met(who, {operation}, type_, host) if rule.allows]
        denied = [rule for rule in self._met(who, {operation}, type_, host) if not rule.allows]
        return any(not any(rule.covers(name) for rule in denied) for name in names)

    def _met(self, who: Principal, wanted: Iterable[Operation], type_: ResourceType, host: str) -> list[Rule]:
        return [rule for rule in self.rules if rule.meets(who, wanted, type_, host)]


def read_rules(path: Path) -> Rules:
    """The rules of a file.

    :raises WorldError: names the file, the line and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise WorldError(f"the rules in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(f"the rules in {path} are not UTF-8: {error.reason} at byte {error.start}") from error
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
"""What is quoted, what is escaped, and each # that stands inside a word."""


def _without_comment(line: str) -> str:
    # `shlex` would take a # inside a word for the begin of a comment, too: the rest of a rule would be lost unseen.
    before = _BEFORE_COMMENT.match(line)
    assert before is not None, "it matches nothing at all, too"
    return before[0] if line.startswith("#", before.end()) else line


def _super_user(words: Sequence[str]) -> str:
    if len(words) != 2:
        raise ValueError("super wants one principal: super User:name")
    if words[1] == "User:*":
        raise ValueError("super wants one principal, not everybody: to let everybody do everything, leave out --acl")
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
        raise ValueError(f"{word} is no principal: write User:name, or User:* for everybody")
    return word


def _operation(word: str) -> Operation:
    try:
        return Operation(word.lower())
    except ValueError:
        raise ValueError(f"{word!r} is no operation; there are {', '.join(Operation)}") from None


def _resource(word: str) -> tuple[ResourceType, str]:
    type_, colon, name = word.partition(":")
    if word == ResourceType.CLUSTER:
        return ResourceType.CLUSTER, "*"
    if type_ not in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID) or not (colon and name):
        raise ValueError(f"{word} is no resource: write topic:NAME, group:NAME, transactional_id:NAME or cluster")
    if "*" in name[:-1]:
        raise ValueError(f"{word} has a * before its end: only the end of a name may be left open")
    return ResourceType(type_), name


def _host(word: str) -> IPv4Network | IPv6Network | None:
    if word == "*":
        return None
    try:
        return ip_network(word)
    except ValueError as error:
        # A name would never meet anybody: a deny rule with one would forbid nothing.
        raise ValueError(f"after from comes an IP address or a range of them, like 10.0.0.0/8: {error}") from None


@lru_cache(maxsize=1024)
def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Of a peer; None where there is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
