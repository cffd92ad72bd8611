"""The options of `coterie groups`. The commands themselves are in `cli.groups.commands`."""

from pathlib import Path
from typing import Annotated

import typer

groups_app = typer.Typer(
    no_args_is_help=True,
    help="List, describe and change the groups of a broker, over Kafka's protocol: it works while no worker responds. "
    "Workers form a connect group (group.protocol=connect) or a classic group.",
)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id (group.id).", show_default=False)]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="The brokers to connect to first. Default: bootstrap.servers of --command-config, else localhost:9092.",
        show_default=False,
    ),
]
CommandConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="A .properties file with the client's settings, such as security.protocol and sasl.jaas.config; a "
        "worker's settings file, too.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@groups_app.command("list")
def list_groups(
    bootstrap_servers: BootstrapOption = None, command_config: CommandConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show all groups that this client may describe: their types, their states, and what their members are."""
    from coterie.cli.groups import commands

    commands.list_groups(commands.make_group_admin(bootstrap_servers, command_config), as_json=as_json)


@groups_app.command("describe")
def describe_group(
    group: GroupArgument,
    bootstrap_servers: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group as its coordinator describes it. Of a connect group: epochs, target and current jobs of each member,
    which member waits for which and why, and the error of the last computation."""
    from coterie.cli.groups import commands

    commands.describe_group(commands.make_group_admin(bootstrap_servers, command_config), group, as_json=as_json)


@groups_app.command("config")
def group_config(
    group: GroupArgument,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a config of this group.")
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="KEY", help="Delete a config of this group: the broker's value applies."),
    ] = None,
    bootstrap_servers: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the configs of a connect group, and set or delete some of them.

    --set and --delete can be given more than once. All changes are made, or none. They are in effect at once, and
    after restarts of the broker.
    """
    from coterie.cli.groups import commands

    admin = commands.make_group_admin(bootstrap_servers, command_config)
    commands.change_and_print_configs(admin, group, set_=set_ or (), delete=delete or (), as_json=as_json)


@groups_app.command("remove-member")
def remove_member(
    group: GroupArgument,
    member: Annotated[
        str,
        typer.Argument(
            metavar="MEMBER",
            help="The member: its member id, group.instance.id or, in a connect group, name or host:port.",
            show_default=False,
        ),
    ],
    bootstrap_servers: BootstrapOption = None,
    command_config: CommandConfigOption = None,
) -> None:
    """Remove a member from its group, for instance a static worker that does not return.

    To remove a worker that runs, use: coterie worker drain ID. A worker that is removed while it runs stops its jobs
    and joins again. The jobs of a removed member of a connect group start elsewhere when its session would have ended
    and scheduled.rebalance.max.delay.ms is over.
    """
    from coterie.cli.groups import commands

    commands.remove_member(commands.make_group_admin(bootstrap_servers, command_config), group, member)
