"""The commands of `coterie groups`: each sends its requests and prints the result."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from coterie.cli.console import make_console
from coterie.cli.groups.report import group_json, listed_group_json, name_by_member_id, print_group
from coterie.cli.workers.settings_file import read_properties
from coterie.config.definition import split_list
from coterie.config.security import KafkaSecurity
from coterie.config.worker import check_bootstrap_servers
from coterie.herder.group_view import worker_id_of_url
from coterie.kafka.group_admin import ClassicGroupDescription, GroupAdmin, GroupConfig
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.group_description import GroupDescription
from coterie.nouns.ids import GroupId, MemberId

_DEFAULT_SERVERS = "localhost:9092"
_SERVERS_KEY = "bootstrap.servers"
_CONNECT_CONFIG_PREFIX = "connect."
"""The beginning of the names of a connect group's configs."""


def make_group_admin(bootstrap_servers: str | None, command_config: Path | None) -> GroupAdmin:
    """A client for requests about groups to the brokers ``bootstrap_servers``; if that is None, to those of
    ``bootstrap.servers`` in the file ``command_config``; if there are none, to localhost:9092. The file also has the
    client's security settings.

    :raises ConfigError: when a setting in the file ``command_config`` is not valid.
    :raises WorldError: when the file cannot be read, or ``bootstrap_servers`` is not valid.
    """
    properties: Mapping[str, str] = {} if command_config is None else read_properties(command_config)
    text = bootstrap_servers or properties.get(_SERVERS_KEY) or _DEFAULT_SERVERS
    try:
        servers = check_bootstrap_servers(tuple(split_list(text)))
    except ValueError as error:
        source = "--bootstrap-servers" if bootstrap_servers or command_config is None else f"{command_config}"
        raise WorldError(f"{source}: {error}") from None
    try:
        security = KafkaSecurity.from_properties(properties)
    except ConfigError as error:
        raise ConfigError(
            {key: [f"{command_config}: {one}" for one in messages] for key, messages in error.errors.items()}
        ) from None
    return GroupAdmin(servers, client_id="coterie-groups", security=security)


def list_groups(admin: GroupAdmin, *, as_json: bool) -> None:
    """Print all groups of the brokers that this client may describe.

    :raises WorldError: see :meth:`.GroupAdmin.list_groups`.
    """
    groups = asyncio.run(admin.list_groups())
    if as_json:
        _print_json([listed_group_json(group) for group in groups])
        return
    console = make_console()
    if not groups:
        console.print("There are no groups.")
        return
    table = Table("group", "type", "state", "members are", box=None, header_style="bold")
    for group in groups:
        members = "workers" if group.protocol_type == "connect" else group.protocol_type
        table.add_row(escape(group.group_id), group.type or "-", group.state or "-", escape(members or "-"))
    console.print(table)


def describe_group(admin: GroupAdmin, group: str, *, as_json: bool) -> None:
    """Print the group with the id ``group``, as its coordinator describes it.

    :raises WorldError: when there is no such group; see also :meth:`.GroupAdmin.describe_group`.
    """
    group_id = GroupId(group)
    described = asyncio.run(_describe_existing_group(admin, group_id))
    if as_json:
        _print_json(group_json(group_id, described))
    else:
        print_group(group_id, described, make_console())


def change_and_print_configs(
    admin: GroupAdmin, group: str, *, set_: Sequence[str], delete: Sequence[str], as_json: bool
) -> None:
    """Change the configs of the group with this id, if ``set_`` or ``delete`` has elements. Then print every config of
    connect groups (``connect.…``), also those that are not set on this group, and every other config that is set on
    this group.

    :raises WorldError: when an element of ``set_`` is not KEY=VALUE, a key is given twice, or the broker refuses the
        change or the request.
    """
    changes = _parse_config_changes(set_, delete)
    configs = asyncio.run(_change_and_read_configs(admin, GroupId(group), changes))
    shown = [one for one in configs if one.is_set_on_group or one.name.startswith(_CONNECT_CONFIG_PREFIX)]
    if as_json:
        _print_json(
            {"configs": [{"name": one.name, "value": one.value, "is_set": one.is_set_on_group} for one in shown]}
        )
        return
    console = make_console()
    table = Table("config", "value", "set on", box=None, header_style="bold")
    for one in shown:
        table.add_row(escape(one.name), escape(one.value) or "-", "the group" if one.is_set_on_group else "the broker")
    console.print(table if shown else "This broker has no configs of connect groups.")


def remove_member(admin: GroupAdmin, group: str, member: str) -> None:
    """Remove the member that ``member`` names from the group with the id ``group``, and print the member's name.

    :raises WorldError: when there is no such group, or not exactly one such member; see also
        :meth:`.GroupAdmin.remove_member`.
    """
    removed = asyncio.run(_remove_sole_match_and_return_name(admin, GroupId(group), member))
    make_console().print(f"Removed {escape(removed)} from group {escape(group)}.")


# -- requests ---------------------------------------------------------------------------------------------------------


async def _describe_existing_group(admin: GroupAdmin, group_id: GroupId) -> GroupDescription | ClassicGroupDescription:
    """The description of the group with the id ``group_id``.

    :raises WorldError: when there is no classic or connect group with this id; see also
        :meth:`.GroupAdmin.describe_group`.
    """
    described = await admin.describe_group(group_id)
    if described is None:
        raise WorldError(f"there is no classic or connect group {group_id}; to list all groups: coterie groups list")
    return described


async def _change_and_read_configs(
    admin: GroupAdmin, group_id: GroupId, changes: Mapping[str, str | None]
) -> Sequence[GroupConfig]:
    """Apply ``changes`` to the configs of the group, and return its configs afterwards. Prints a warning if the changes
    have no effect: there is no such group yet, or it is a classic group.

    :raises WorldError: see :meth:`.GroupAdmin.describe_group`, :meth:`.GroupAdmin.alter_group_configs`.
    """
    if changes:
        described = await admin.describe_group(group_id)  # first: if it is refused, nothing is changed
        await admin.alter_group_configs(group_id, changes)
        if described is None:
            sys.stderr.write(
                f"There is no group {group_id} yet; its configs are kept for a connect group of this id.\n"
            )
        elif isinstance(described, ClassicGroupDescription):
            sys.stderr.write(f"Group {group_id} is a classic group, in which configs of connect groups do nothing.\n")
    return await admin.group_configs(group_id)


async def _remove_sole_match_and_return_name(admin: GroupAdmin, group_id: GroupId, member: str) -> str:
    """Remove the only member that ``member`` names; returns the member's name (:func:`name_by_member_id`).

    :raises WorldError: when there is no such group, or not exactly one such member.
    """
    described = await _describe_existing_group(admin, group_id)
    if not described.members:
        raise WorldError(f"group {group_id} has no members, so there is none to remove")
    if not member:
        raise WorldError(f"MEMBER is empty: name the member of group {group_id} that is to be removed")
    names = name_by_member_id(described)
    found = _matching_members(described, member)
    if len(found) != 1:
        known = ", ".join(names[one] for one in (found or [one.member_id for one in described.members]))
        problem = f"{len(found)} members are called {member}" if found else f"there is no member {member}"
        raise WorldError(f"{problem} in group {group_id}; to name one member, use one of: {known}")
    (member_id,) = found
    instance_id = next(one.instance_id for one in described.members if one.member_id == member_id)
    await admin.remove_member(group_id, member_id, instance_id)
    return names[member_id]


def _matching_members(group: GroupDescription | ClassicGroupDescription, text: str) -> list[MemberId]:
    """The ids of the members that ``text`` names: those with this member id or instance id, else, in a connect group,
    those with this ``host:port`` or name."""
    by_id = [one.member_id for one in group.members if text in (one.member_id, one.instance_id)]
    if by_id or isinstance(group, ClassicGroupDescription):
        return by_id
    return [one.member_id for one in group.members if text in (worker_id_of_url(one.url), one.name)]


# -- helpers ----------------------------------------------------------------------------------------------------------


def _parse_config_changes(set_: Sequence[str], delete: Sequence[str]) -> dict[str, str | None]:
    """The changes of a group's configs that the options ``--set`` and ``--delete`` state, by key; the value of a
    deletion is None.

    :raises WorldError: when an element of ``set_`` is not KEY=VALUE, or a key is given twice.
    """
    changes: dict[str, str | None] = {}
    given = [(text, *text.partition("=")) for text in set_]
    for text, key, equals_sign, value in given:
        if not (key and equals_sign):
            raise WorldError(f"--set {text}: use KEY=VALUE, for example connect.session.timeout.ms=20000")
        if key in changes:
            raise WorldError(f"--set {text}: {key} is given twice; --set and --delete together may name a key once")
        changes[key] = value
    for key in delete:
        if key in changes:
            raise WorldError(f"--delete {key}: {key} is given twice; --set and --delete together may name a key once")
        changes[key] = None
    return changes


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
