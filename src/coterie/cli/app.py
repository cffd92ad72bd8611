"""The command line: names, options and help texts of all commands. Their code is in other modules, imported on use."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie import __version__
from coterie.cli import parent
from coterie.cli.broker.app import broker_app
from coterie.cli.folders import parse_folder_unless_blank
from coterie.cli.groups.app import groups_app
from coterie.cli.options import DEFAULT_URL, UrlOption, with_login_options
from coterie.cli.plan.command import plan
from coterie.cli.rest_users import rest_app
from coterie.cli.signals import interrupt_on_termination_signals
from coterie.cli.stderr import log_to_stderr, print_errors
from coterie.config.defaults import MAVEN_CENTRAL
from coterie.nouns.errors import ConfigError, CoterieError
from coterie.nouns.membership import GroupProtocolName

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
app.add_typer(groups_app, name="groups")
app.add_typer(worker_app, name="worker")
app.add_typer(workers_app, name="workers")
app.add_typer(connectors_app, name="connectors")
app.add_typer(jars_app, name="jars")
app.add_typer(rest_app, name="rest")
app.command()(plan)

DataFolder = Annotated[Path, typer.Option("--data", help="Folder for all stored data: logs, topics, checkpoints.")]
GroupProtocolOption = Annotated[
    GroupProtocolName,
    typer.Option("--group-protocol", help="The workers' group.protocol: classic (Kafka's), or connect (Coterie's)."),
]
ConnectorNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The connector's name.", show_default=False)]
JarsFolder = Annotated[
    Path | None,
    typer.Option(
        "--in",
        metavar="FOLDER",
        parser=parse_folder_unless_blank,
        help="The workers' folder of jars; by default coterie/jars in the user's cache folder.",
        show_default=False,
    ),
]


def main() -> None:
    """Run the command line: the entry point. Every expected error is printed as one or more lines, not as a traceback.

    The exit code is then 1, and 130 after Ctrl-C.
    """
    parent.exit_with_parent()
    try:
        app()
    except ConfigError as error:
        for sentences in error.errors.values():
            print_errors(*sentences)
        sys.exit(1)
    except CoterieError as error:
        print_errors(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _exit_with_version_if_requested(is_requested: bool) -> None:
    """Print the version and exit, if the option ``--version`` was given."""
    if is_requested:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def coterie(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_exit_with_version_if_requested, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of `coterie` itself, before a command. Its help text is that of ``app``, not this text."""


# -- one cluster on this machine --------------------------------------------------------------------------------------


@app.command()
def up(
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="How many workers to start.")] = 3,
    data: DataFolder = Path("coterie-data"),
    broker_port: Annotated[int, typer.Option("--broker-port", min=1, max=65535, help="Port of the broker.")] = 9092,
    rest_port: Annotated[
        int, typer.Option("--rest-port", min=1, max=65535, help="REST port of worker 0; worker N has this port + N.")
    ] = 8083,
    group_protocol: GroupProtocolOption = GroupProtocolName.CLASSIC,
) -> None:
    """Start a cluster on this machine, an embedded broker and some workers, until Ctrl-C.

    A broker that ends unexpectedly is restarted on the same port and data. A worker is not restarted: its group
    continues without it.
    """
    interrupt_on_termination_signals()
    from coterie.cli import up as up_

    sys.exit(
        up_.run_cluster(
            workers=workers, data=data, broker_port=broker_port, rest_port=rest_port, group_protocol=group_protocol
        )
    )


@app.command()
def demo(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Empty or new folder to work in; by default a temporary one, kept on failure."),
    ] = None,
    broker_port: Annotated[
        int | None,
        typer.Option(
            "--broker-port", min=1, max=65535, help="Port of the broker. Default: 9092, or the next free port."
        ),
    ] = None,
    rest_port: Annotated[
        int | None,
        typer.Option(
            "--rest-port",
            min=1,
            max=65535,
            help="REST port of worker 0; worker N has this port + N. Default: 8083, or the next free ports.",
        ),
    ] = None,
    group_protocol: GroupProtocolOption = GroupProtocolName.CLASSIC,
) -> None:
    """Run a demo: three workers process real data, one is killed in the middle of a batch, and no row is lost.

    The demo takes about three minutes, longer on a busy machine, and leaves no process running. Exit code 0
    means that every output row was compared with the input and is correct.
    """
    interrupt_on_termination_signals()
    from coterie.cli.demo import script

    sys.exit(
        script.run_demo_in_folder(
            data=data, broker_port=broker_port, rest_port=rest_port, group_protocol=group_protocol
        )
    )


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
            help="Settings of the worker: a .properties file with the keys of Kafka Connect. Required, except "
            "with a subcommand.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run one worker of a group. The subcommand drain removes a worker.

    On SIGTERM the worker stops its tasks at the end of their batches and leaves the group. Its tasks stay unassigned
    for scheduled.rebalance.max.delay.ms, in case the worker returns. A worker with a group.instance.id does not leave
    the group: if the worker starts again within its session timeout, it gets its tasks at once. To remove a worker
    permanently, use: coterie worker drain ID.
    """
    if context.invoked_subcommand is not None:
        if config is not None:
            raise typer.BadParameter("--config is only for running a worker; `worker drain` does not use it")
        return
    if config is None:
        raise typer.BadParameter("Missing option '--config' / '-c': the settings file of the worker to run")
    from coterie.cli.workers import settings_file

    settings, warnings = settings_file.read_settings_and_warnings(config)
    log_to_stderr(settings.log_level)
    for warning in warnings:
        logging.getLogger(__name__).warning("%s", warning)
    from coterie.cli.workers import compose

    def check_reread_settings_for_restart() -> None:
        """Raise a CoterieError if this worker could not start again with the present content of its settings file."""
        restarted, _ = settings_file.read_settings_and_warnings(config)
        compose.check_listeners_for_restart(restarted, running=settings)
        compose.check_assignors_and_listeners_installed(restarted)

    sys.exit(compose.run_worker(settings, check_settings=check_reread_settings_for_restart))


# -- the workers of a group -------------------------------------------------------------------------------------------


@app.command()
@with_login_options
def group(
    url: UrlOption = DEFAULT_URL,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the response of GET /coterie/group, for programs.")
    ] = False,
) -> None:
    """Show a group: its workers, their states and jobs, and the jobs that move, are unassigned or wait for a worker."""
    from coterie.cli.workers import commands

    commands.show_group(url, as_json=as_json)


@worker_app.command("drain")
@with_login_options
def drain_worker_and_wait(
    worker: Annotated[
        str,
        typer.Argument(metavar="ID", help="The worker's name, host:port or group.instance.id.", show_default=False),
    ],
    url: UrlOption = DEFAULT_URL,
    uncordon: Annotated[
        bool, typer.Option("--uncordon", help="Cancel a drain: the worker stays and accepts jobs again.")
    ] = False,
) -> None:
    """Remove a worker permanently: its jobs move to other workers, without a delay, then its process ends.

    The worker runs each job until the job moves. The command returns when the worker has ended. Ctrl-C ends the
    command, not the drain. In a classic group all workers need connect.protocol=static.
    """
    from coterie.cli.workers import commands

    if uncordon:
        commands.cancel_drain(url, worker)
    else:
        commands.drain_worker_and_wait(url, worker)


@workers_app.command("restart")
@with_login_options
def restart_workers(
    only: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="Only these workers: names, host:port or group.instance.id.", show_default=False
        ),
    ] = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="Restart one worker after the other, the leader last; required.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            help="How long each worker may take, in seconds, until its tasks run again.",
        ),
    ] = 300,
    move_jobs: Annotated[
        bool,
        typer.Option(
            "--move-jobs",
            help="First move each worker's jobs to the other workers: each job stops twice for a moment, instead of "
            "once for the whole restart.",
        ),
    ] = False,
) -> None:
    """Restart the processes of all workers, with their present settings files and code.

    Each worker stops its tasks at the ends of their batches, replaces its process, keeps its membership, and runs the
    same tasks again before the next worker restarts. No job moves if each process runs again within its session
    timeout (session.timeout.ms; connect.session.timeout.ms in a connect group). A worker that takes longer loses its
    membership, and its jobs are treated as those of a lost worker. No worker restarts while another worker is missing.
    The only worker of a group restarts only if its ID is given.

    A worker's tasks do not run while it restarts, for as long as a new JVM takes to start. With --move-jobs they run on
    the other workers meanwhile, which must have the capacity for them; a worker with a job that no other worker may run
    does not restart. In a classic group --move-jobs needs connect.protocol=static on all workers.
    """
    from coterie.cli.workers import commands

    if not rolling:
        raise typer.BadParameter(
            "Use --rolling to restart one worker after the other; restarting all workers at once is not supported"
        )
    commands.restart_workers_rolling(url, timeout_s=timeout, only_workers=only or (), moves_jobs=move_jobs)


# -- connectors -------------------------------------------------------------------------------------------------------


@connectors_app.command("list")
@with_login_options
def list_connectors(url: UrlOption = DEFAULT_URL) -> None:
    """Show every connector, its state and the states of its tasks."""
    from coterie.cli import connectors

    connectors.show_connectors(url)


@connectors_app.command("create")
@with_login_options
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
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Create a connector. Its tasks start after the next rebalance; the command does not wait for them."""
    from coterie.cli import connectors

    connectors.create_connector(url, file)


@connectors_app.command("status")
@with_login_options
def show_status_of_connector(name: ConnectorNameArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Show one connector: its state and worker, its tasks, and the traces of failures."""
    from coterie.cli import connectors

    connectors.show_connector_status(url, name)


@connectors_app.command("pause")
@with_login_options
def pause_connector(name: ConnectorNameArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Pause a connector: its tasks stop processing and stay assigned to their workers."""
    from coterie.cli import connectors

    connectors.pause_connector(url, name)


@connectors_app.command("resume")
@with_login_options
def resume_connector(name: ConnectorNameArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Resume a paused or stopped connector, from its last committed position."""
    from coterie.cli import connectors

    connectors.resume_connector(url, name)


@connectors_app.command("delete")
@with_login_options
def delete_connector(name: ConnectorNameArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Stop and delete a connector. Its output is kept."""
    from coterie.cli import connectors

    connectors.delete_connector(url, name)


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
            parser=parse_folder_unless_blank,
            help="Folder for the jars; by default coterie/jars in the user's cache folder. For another folder, set "
            "jars.dir of the workers.",
            show_default=False,
        ),
    ] = None,
    mirror: Annotated[
        str, typer.Option("--mirror", metavar="URL", help="Maven repository to fetch from.")
    ] = MAVEN_CENTRAL,
) -> None:
    """Fetch the missing jars and compare each with the SHA-256 of the tested jar.

    Workers that start afterwards use these jars. The command may be interrupted, and may run twice at the same time.
    """
    from coterie.cli import jars

    jars.fetch_missing_or_damaged_jars(names or (), to, mirror)


@jars_app.command("list")
def list_jars(in_: JarsFolder = None) -> None:
    """Show the Maven coordinates of each package's jars, and which of them are missing."""
    from coterie.cli import jars

    jars.print_jars(in_)


@jars_app.command("archive")
def write_class_data_archive_if_missing(in_: JarsFolder = None) -> None:
    """Archive the classes of Spark and of the workers' jars, so that workers of this user start sooner.

    The archive (some 170 MB) is stored in coterie/classes in the user's cache folder. Write another archive when the
    jars, PySpark or Java change: workers do not use an archive of other versions.
    """
    from coterie.cli import jars

    jars.write_class_data_archive_if_missing(in_)
