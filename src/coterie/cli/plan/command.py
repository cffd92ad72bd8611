"""`coterie plan` as it is typed; what it does is in `preview`."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import DEFAULT_URL, Url

Texts = list[str]


def plan(
    add: Annotated[Texts | None, typer.Option("--add", metavar="NAME", help="A worker of this name joins.")] = None,
    remove: Annotated[
        Texts | None,
        typer.Option("--remove", metavar="WORKER", help="This worker stops or dies, and does not come back."),
    ] = None,
    drain: Annotated[Texts | None, typer.Option("--drain", metavar="WORKER", help="This worker drains.")] = None,
    claim_connectors: Annotated[
        Texts | None,
        typer.Option(
            "--claim-connectors",
            metavar="WORKER=NAME,…",
            help="This worker comes to have these static.connectors; with nothing behind the = it claims none.",
        ),
    ] = None,
    claim_tasks: Annotated[
        Texts | None,
        typer.Option("--claim-tasks", metavar="WORKER=TASK,…", help="… these static.tasks, each as CONNECTOR-NUMBER."),
    ] = None,
    create: Annotated[
        Texts | None,
        typer.Option("--create", metavar="NAME=TASKS", help="This connector is created, or has so many tasks instead."),
    ] = None,
    delete: Annotated[Texts | None, typer.Option("--delete", metavar="NAME", help="This connector is deleted.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            allow_dash=True,
            help="Read the group from this file, saved from GET /coterie/group; - reads standard input.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Tell what would move, and why, if the group changed; nothing is changed.

    Every option can be given more than once; all changes are planned together. Without any, the plan is what the group
    will do by itself. A WORKER is called by its name, host:port or instance id.

    It is the leader's own code that answers, so it is what would happen, unless something else happens in between.
    """
    from coterie.cli.plan import preview as plan_

    asked = plan_.PlanOptions(
        add=add or (),
        remove=remove or (),
        drain=drain or (),
        claim_connectors=claim_connectors or (),
        claim_tasks=claim_tasks or (),
        create=create or (),
        delete=delete or (),
    )
    plan_.show(asked, url=url, file=file, as_json=as_json)
