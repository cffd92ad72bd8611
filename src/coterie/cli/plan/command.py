"""The options of `coterie plan`. The command itself is in `preview`."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import DEFAULT_URL, UrlOption, with_login_options

OptionValues = list[str]


@with_login_options
def plan(
    add: Annotated[
        OptionValues | None, typer.Option("--add", metavar="NAME", help="A worker of this name joins.")
    ] = None,
    remove: Annotated[
        OptionValues | None,
        typer.Option("--remove", metavar="WORKER", help="This worker stops or is killed, and does not return."),
    ] = None,
    drain: Annotated[OptionValues | None, typer.Option("--drain", metavar="WORKER", help="This worker drains.")] = None,
    claim_connectors: Annotated[
        OptionValues | None,
        typer.Option(
            "--claim-connectors",
            metavar="WORKER=NAME,…",
            help="This worker gets these static.connectors; with nothing after the = it claims no connector.",
        ),
    ] = None,
    claim_tasks: Annotated[
        OptionValues | None,
        typer.Option(
            "--claim-tasks",
            metavar="WORKER=TASK,…",
            help="This worker gets these static.tasks, each as CONNECTOR-NUMBER.",
        ),
    ] = None,
    create: Annotated[
        OptionValues | None,
        typer.Option(
            "--create", metavar="NAME=TASKS", help="This connector is created; an existing one as with --resize."
        ),
    ] = None,
    resize: Annotated[
        OptionValues | None,
        typer.Option(
            "--resize",
            metavar="NAME=TASKS",
            help="This connector gets another number of tasks: each of its present tasks stops and starts again.",
        ),
    ] = None,
    delete: Annotated[
        OptionValues | None, typer.Option("--delete", metavar="NAME", help="This connector is deleted.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            allow_dash=True,
            help="Read the group from this file, saved from GET /coterie/group; - reads standard input.",
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show which jobs would move, and why, if the group changed. The command changes nothing.

    Every option can be given more than once; all changes are planned together. Without changes, the plan shows the
    moves that the group will make next. A WORKER is a name, host:port or instance id.

    The plan is computed by the leader's code. The group will do the same, unless another change comes in between.
    """
    from coterie.cli.plan import preview as plan_

    options = plan_.ChangeOptions(
        add=add or (),
        remove=remove or (),
        drain=drain or (),
        claim_connectors=claim_connectors or (),
        claim_tasks=claim_tasks or (),
        create=create or (),
        resize=resize or (),
        delete=delete or (),
    )
    plan_.show_plan(options, url=url, file=file, as_json=as_json)
