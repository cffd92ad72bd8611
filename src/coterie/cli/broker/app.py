"""`coterie broker`: options and subcommands. Without a subcommand it runs the broker."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.broker.users import users_app
from coterie.cli.folders import parse_folder_unless_blank
from coterie.cli.signals import interrupt_on_termination_signals
from coterie.cli.stderr import log_to_stderr
from coterie.config import defaults

broker_app = typer.Typer(invoke_without_command=True)
broker_app.add_typer(users_app, name="user")


@broker_app.callback()
def broker(
    context: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address where the broker listens for Kafka clients.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST",
            help="The host to which clients connect, as sent in metadata. Default: the host of --listen; "
            "for 0.0.0.0 and [::] the name of this machine.",
        ),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="PATH",
            parser=parse_folder_unless_blank,
            help="Folder for all stored data: topics, groups, users.",
        ),
    ] = Path("coterie-data/broker"),
    security: Annotated[
        str,
        typer.Option(
            "--security",
            metavar="PROTOCOL",
            help="PLAINTEXT, SSL (TLS), SASL_PLAINTEXT (users log in) or SASL_SSL (both).",
        ),
    ] = "PLAINTEXT",
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate", metavar="FILE", help="The broker's certificate (PEM), then its chain up to the CA."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="The key of --tls-certificate (PEM), not encrypted."),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            metavar="FILE",
            help="Accept only clients with a certificate of one of these CAs (PEM); its subject is the user's name.",
        ),
    ] = None,
    acl: Annotated[
        Path | None,
        typer.Option(
            "--acl",
            metavar="FILE",
            help="Access rules, one a line, for example: allow User:alice read,write topic:orders*. "
            "Default: every connected client may do everything.",
        ),
    ] = None,
    no_auto_create_topics: Annotated[
        bool,
        typer.Option(
            "--no-auto-create-topics",
            help="Do not create a missing topic when a client requests it. Default: create it, as Kafka does.",
        ),
    ] = False,
    initial_delay_ms: Annotated[
        int,
        typer.Option(
            "--initial-delay-ms",
            metavar="MS",
            min=0,
            help="How long an empty group waits for more members before its first rebalance, in milliseconds.",
        ),
    ] = defaults.INITIAL_REBALANCE_DELAY_MS,
    groups_max: Annotated[
        int, typer.Option("--groups-max", metavar="N", min=1, help="Maximum number of groups; others are refused.")
    ] = defaults.GROUPS_MAX,
    group_size_max: Annotated[
        int, typer.Option("--group-size-max", metavar="N", min=1, help="Maximum number of members of one group.")
    ] = defaults.CLASSIC_GROUP_SIZE_MAX,
    frame_size_max: Annotated[
        int,
        typer.Option(
            "--frame-size-max", metavar="BYTES", min=1_024, help="Largest request in bytes; a larger one is refused."
        ),
    ] = defaults.FRAME_SIZE_MAX_BYTES,
    connections_max: Annotated[
        int, typer.Option("--connections-max", metavar="N", min=1, help="Maximum number of open connections.")
    ] = defaults.CONNECTIONS_MAX,
    connections_per_address_max: Annotated[
        int | None,
        typer.Option(
            "--connections-per-ip-max",
            metavar="N",
            min=1,
            help="Maximum number of open connections from one address. Default: --connections-max.",
        ),
    ] = None,
    in_flight_max: Annotated[
        int,
        typer.Option(
            "--in-flight-max",
            metavar="N",
            min=1,
            help="Maximum number of unanswered requests that the broker reads from one connection.",
        ),
    ] = defaults.IN_FLIGHT_REQUESTS_MAX,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="KEY=VALUE",
            help="A broker config of connect groups, by its name (see docs/broker.md); may be repeated.",
        ),
    ] = None,
) -> None:
    """Run the embedded broker: topics, classic groups and connect groups, over the Kafka protocol.

    This broker is made for one machine; in a real cluster workers use Kafka brokers. The files of certificates, users
    and access rules may change while the broker runs: the broker applies changes within a second.
    """
    if context.invoked_subcommand is not None:
        return
    log_to_stderr("INFO")
    from coterie.cli.broker import process as broker_

    settings = broker_.broker_settings(
        listen,
        data,
        advertise=advertise,
        security=security,
        certificate=tls_certificate,
        key=tls_key,
        client_ca=tls_client_ca,
        acl=acl,
        auto_create_topics=not no_auto_create_topics,
        connections_per_address_max=connections_per_address_max,
        initial_delay_ms=initial_delay_ms,
        groups_max=groups_max,
        group_size_max=group_size_max,
        frame_size_max=frame_size_max,
        connections_max=connections_max,
        in_flight_max=in_flight_max,
        configs=configs or (),
    )
    sys.exit(broker_.run_broker(settings))


@broker_app.command("check")
def check_broker(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", parser=parse_folder_unless_blank, help="The broker's folder.", show_default=False
        ),
    ],
) -> None:
    """Check all data of a broker, which may be running.

    Prints one line for each error. The exit code is 1 if there are errors.
    """
    from coterie.cli.broker import data_folder

    sys.exit(data_folder.run_check_command(data))


@broker_app.command("backup")
def back_broker_up(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", parser=parse_folder_unless_blank, help="The broker's folder.", show_default=False
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", parser=parse_folder_unless_blank, help="Folder for the copy.", show_default=False
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing copy.")] = False,
) -> None:
    """Copy all data of a broker, which may be running.

    The copy contains all data that the broker acknowledged before this command began.
    """
    interrupt_on_termination_signals()
    from coterie.cli.broker import data_folder

    sys.exit(data_folder.run_backup_command(data, target, force=force))
