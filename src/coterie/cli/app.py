"""The command line: what each command is called, takes and says; what it does lives beside it, loaded when needed."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie import __version__
from coterie.cli import parent
from coterie.cli.broker.app import broker_app
from coterie.cli.folders import folder
from coterie.cli.options import DEFAULT_URL, Url
from coterie.cli.plan.command import plan
from coterie.cli.signals import interrupt_on_signals
from coterie.cli.stderr import complain, log_to_stderr
from coterie.config.defaults import MAVEN_CENTRAL
from coterie.nouns.errors import ConfigError, CoterieError

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Fleets of PySpark streaming pipelines, run the way Kafka Connect runs connectors: POST a config, and its "
        "tasks are spread over a group of workers.\n\nBegin with [bold]coterie demo[/bold], then "
        "[bold]coterie up[/bold] and [bold]coterie connectors create[/bold]."
    ),
)
connectors_app = typer.Typer(
    no_args_is_help=True,
    help="List, create, pause, resume and delete connectors, through the REST API of any worker.",
)
worker_app = typer.Typer()
jars_app = typer.Typer(
    no_args_is_help=True,
    help="The jars that connectors of Kafka, Delta, Avro and PostgreSQL need: Spark loads them when a worker starts.",
)
workers_app = typer.Typer(no_args_is_help=True, help="All workers of a group, through the REST API of any of them.")
app.add_typer(broker_app, name="broker")
app.add_typer(worker_app, name="worker")
app.add_typer(workers_app, name="workers")
app.add_typer(connectors_app, name="connectors")
app.add_typer(jars_app, name="jars")
app.command()(plan)

Data = Annotated[Path, typer.Option("--data", help="Folder for everything that is kept: logs, topics, checkpoints.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The connector's name.", show_default=False)]
JarsFolder = Annotated[
    Path | None,
    typer.Option(
        "--in",
        metavar="FOLDER",
        parser=folder,
        help="The workers' folder of jars; by default coterie/jars in the user's cache folder.",
        show_default=False,
    ),
]


def main() -> None:
    """The entry point: every error that has a reason leaves as clear lines, never as a traceback."""
    parent.end_with_it()
    try:
        app()
    except ConfigError as error:
        for sentences in error.errors.values():
            complain(*sentences)
        sys.exit(1)
    except CoterieError as error:
        complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def coterie(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What is true of every command; its help is the app's."""


# -- one cluster on this machine --------------------------------------------------------------------------------------


@app.command()
def up(
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="How many workers to start.")] = 3,
    data: Data = Path("coterie-data"),
    broker_port: Annotated[int, typer.Option("--broker-port", min=1, max=65535, help="Port of the broker.")] = 9092,
    rest_port: Annotated[
        int, typer.Option("--rest-port", min=1, max=65535, help="REST port of worker 0; worker i serves on this + i.")
    ] = 8083,
) -> None:
    """Start a whole cluster on this machine, an embedded broker and some workers, until Ctrl-C.

    The broker is started again when it dies, on the same port and data; a worker is not: its group goes on without it.
    """
    interrupt_on_signals()
    from coterie.cli import up as up_

    sys.exit(up_.run(workers=workers, data=data, broker_port=broker_port, rest_port=rest_port))


@app.command()
def demo(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Empty or new folder to work in; by default a temporary one, kept on failure."),
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option("--broker-port", min=1, max=65535, help="Default: 9092, or the next one that is free.")
    ] = None,
    rest_port: Annotated[
        int | None,
        typer.Option("--rest-port", min=1, max=65535, help="Default: 8083 and on, or the next ones that are free."),
    ] = None,
) -> None:
    """Show it: real data through three workers, one of which is killed in the middle of a batch; nothing is lost.

    Takes about three minutes, longer on a busy machine, and leaves nothing running. Exit code 0 means that every row
    was compared and is right.
    """
    interrupt_on_signals()
    from coterie.cli.demo import script

    sys.exit(script.run(data=data, broker_port=broker_port, rest_port=rest_port))


# -- one process ------------------------------------------------------------------------------------------------------


@worker_app.callback(invoke_without_command=True)
def worker(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Settings of the worker, a .properties file with Kafka Connect's own keys.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run one worker of a group, or drain one.

    SIGTERM stops its tasks at the end of their batches and leaves the group; its tasks wait for it to come back for
    scheduled.rebalance.max.delay.ms. With a group.instance.id it does not leave: back within session.timeout.ms it gets
    its own tasks at once. To take a worker out for good: coterie worker drain ID.
    """
    if context.invoked_subcommand is not None:
        if config is not None:
            raise typer.BadParameter("--config is of a worker that is to run here, not of one to drain")
        return
    if config is None:
        raise typer.BadParameter("Missing option '--config' / '-c': which worker is to run here?")
    from coterie.cli.workers import settings_file

    settings, warnings = settings_file.read(config)
    log_to_stderr(settings.log_level)
    for warning in warnings:
        logging.getLogger(__name__).warning("%s", warning)
    from coterie.cli.workers import compose

    def check_anew() -> None:
        compose.check_listener(settings_file.read(config)[0], running=settings)

    sys.exit(compose.run_worker(settings, check_settings=check_anew))


# -- the workers of a group -------------------------------------------------------------------------------------------


@app.command()
def group(
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: what GET /coterie/group answers.")] = False,
) -> None:
    """Show a group: its workers and their states, who has what, what moves, what waits and what has nobody."""
    from coterie.cli.workers import commands

    commands.show_group(url, as_json=as_json)


@worker_app.command("drain")
def drain_worker(
    worker: Annotated[
        str,
        typer.Argument(metavar="ID", help="Its name, host:port or group.instance.id.", show_default=False),
    ],
    url: Url = DEFAULT_URL,
    uncordon: Annotated[
        bool, typer.Option("--uncordon", help="Call a drain back: the worker stays and takes work again.")
    ] = False,
) -> None:
    """Take a worker out for good: its jobs move away, at once and while it still runs them, then its process ends.

    Returns when it has gone. Ctrl-C ends the waiting, not the drain. Needs connect.protocol=static in the whole group.
    """
    from coterie.cli.workers import commands

    if uncordon:
        commands.uncordon(url, worker)
    else:
        commands.drain(url, worker)


@workers_app.command("restart")
def restart_workers(
    only: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="Only these: names, host:port or group.instance.id.", show_default=False
        ),
    ] = None,
    rolling: Annotated[bool, typer.Option("--rolling", help="One after the other, the leader last.")] = False,
    url: Url = DEFAULT_URL,
    timeout: Annotated[
        int, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long each may take to be back.")
    ] = 300,
) -> None:
    """Restart the processes of all workers, with the settings and the code that are there now.

    Each worker stops its tasks at the ends of their batches, begins anew in its place, and runs the same tasks again
    before the next one restarts. No job moves as long as each process is up again within its session.timeout.ms: a
    worker that is away for longer loses its place, and its jobs are those of a lost worker. Nobody restarts while a
    worker is missing; the only worker of a group restarts only when it is named.
    """
    from coterie.cli.workers import commands

    if not rolling:
        raise typer.BadParameter("Say --rolling: all at once would stop everything, and that is not offered")
    commands.restart_rolling(url, timeout_s=timeout, only=only or ())


# -- connectors -------------------------------------------------------------------------------------------------------


@connectors_app.command("list")
def list_connectors(url: Url = DEFAULT_URL) -> None:
    """Show every connector, its state and the states of its tasks."""
    from coterie.cli import connectors

    connectors.show_all(url)


@connectors_app.command("create")
def create_connector(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help='JSON file, {"name": …, "config": {…}} as in POST /connectors; - reads standard input.',
            show_default=False,
            allow_dash=True,
        ),
    ],
    url: Url = DEFAULT_URL,
) -> None:
    """Create a connector; its tasks start as soon as the group has settled."""
    from coterie.cli import connectors

    connectors.create(url, file)


@connectors_app.command("status")
def show_status(name: Name, url: Url = DEFAULT_URL) -> None:
    """Show one connector: state, worker and, where it failed, the trace of each task."""
    from coterie.cli import connectors

    connectors.show_status(url, name)


@connectors_app.command("pause")
def pause_connector(name: Name, url: Url = DEFAULT_URL) -> None:
    """Stop the work of a connector's tasks; they keep their place and their workers."""
    from coterie.cli import connectors

    connectors.pause(url, name)


@connectors_app.command("resume")
def resume_connector(name: Name, url: Url = DEFAULT_URL) -> None:
    """Let a paused or stopped connector work again, from where it was."""
    from coterie.cli import connectors

    connectors.resume(url, name)


@connectors_app.command("delete")
def delete_connector(name: Name, url: Url = DEFAULT_URL) -> None:
    """Stop and forget a connector. What it has written stays."""
    from coterie.cli import connectors

    connectors.delete(url, name)


# -- jars -------------------------------------------------------------------------------------------------------------


@jars_app.command("fetch")
def fetch_jars(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these packages; see: coterie jars list.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            parser=folder,
            help="By default coterie/jars in the user's cache folder. Tell workers of another one: jars.dir=FOLDER.",
            show_default=False,
        ),
    ] = None,
    mirror: Annotated[
        str, typer.Option("--mirror", metavar="URL", help="Maven repository to fetch from.")
    ] = MAVEN_CENTRAL,
) -> None:
    """Fetch the jars that are missing, each compared with the SHA-256 that it was tested with.

    Workers that start from then on have them. Safe to stop and to run twice at once.
    """
    from coterie.cli import jars

    jars.fetch_missing(names or (), to, mirror)


@jars_app.command("list")
def list_jars(in_: JarsFolder = None) -> None:
    """Show each package's jars, by their coordinates: which are there and which are missing."""
    from coterie.cli import jars

    jars.show(in_)


@jars_app.command("archive")
def archive_classes(in_: JarsFolder = None) -> None:
    """Archive the classes of Spark and of these jars, so that workers of this user start sooner.

    The archive (some 170 MB) is kept in coterie/classes in the user's cache folder. Write another one after new jars,
    another PySpark or another Java: workers do not use an archive that does not fit.
    """
    from coterie.cli import jars

    jars.archive(in_)
