"""`coterie broker`: how it is called; without a word behind it, it runs the broker."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.broker.users import users_app
from coterie.cli.folders import folder
from coterie.cli.signals import interrupt_on_signals
from coterie.cli.stderr import log_to_stderr
from coterie.config import defaults

broker_app = typer.Typer(invoke_without_command=True)
broker_app.add_typer(users_app, name="user")


@broker_app.callback()
def broker(
    context: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where Kafka clients reach it.")
    ] = "127.0.0.1:9092",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST",
            help="The host that clients are told to connect to. Default: that of --listen; "
            "for 0.0.0.0 and [::] the name of this machine.",
        ),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="PATH", parser=folder, help="Folder for everything that is kept: topics, groups, users."
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
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="PEM, with those up to its CA behind it.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key, PEM, not encrypted.")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            metavar="FILE",
            help="Take only clients with a certificate of one of these CAs (PEM); its subject says who they are.",
        ),
    ] = None,
    acl: Annotated[
        Path | None,
        typer.Option(
            "--acl",
            metavar="FILE",
            help="Who may do what, one rule a line, as in: allow User:alice read,write topic:orders*. "
            "Default: whoever gets in may do everything.",
        ),
    ] = None,
    no_auto_create_topics: Annotated[
        bool,
        typer.Option(
            "--no-auto-create-topics",
            help="A client that asks for a topic does not make it. Default: it does, as with Kafka.",
        ),
    ] = False,
    initial_delay_ms: Annotated[
        int,
        typer.Option(
            "--initial-delay-ms",
            metavar="MS",
            min=0,
            help="How long an empty group waits for more members before its first round.",
        ),
    ] = defaults.INITIAL_REBALANCE_DELAY_MS,
    groups_max: Annotated[
        int, typer.Option("--groups-max", metavar="N", min=1, help="How many groups there may be; one more is refused.")
    ] = defaults.GROUPS_MAX,
    group_size_max: Annotated[
        int, typer.Option("--group-size-max", metavar="N", min=1, help="How many members one group may have.")
    ] = defaults.GROUP_SIZE_MAX,
    frame_size_max: Annotated[
        int,
        typer.Option(
            "--frame-size-max", metavar="BYTES", min=1_024, help="Largest request in bytes; a larger one is refused."
        ),
    ] = defaults.FRAME_SIZE_MAX,
    connections_max: Annotated[
        int, typer.Option("--connections-max", metavar="N", min=1, help="How many connections may be open.")
    ] = defaults.CONNECTIONS_MAX,
    connections_per_address_max: Annotated[
        int | None,
        typer.Option(
            "--connections-per-ip-max",
            metavar="N",
            min=1,
            help="How many of them may come from one address. Default: as many as may be open.",
        ),
    ] = None,
    in_flight_max: Annotated[
        int,
        typer.Option(
            "--in-flight-max",
            metavar="N",
            min=1,
            help="How many requests of one connection are taken before the first is answered.",
        ),
    ] = defaults.IN_FLIGHT_MAX,
) -> None:
    """Run the embedded broker: topics and classic groups, over Kafka's own protocol.

    It is for one machine; in a real cluster workers use Kafka brokers. Certificates, users and rules may change while
    it runs: it takes what is new within a second.
    """
    if context.invoked_subcommand is not None:
        return
    log_to_stderr("INFO")
    from coterie.cli.broker import process as broker_

    settings = broker_.settings(
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
    )
    sys.exit(broker_.run(settings))


@broker_app.command("check")
def check_broker(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", parser=folder, help="The broker's folder.", show_default=False)
    ],
) -> None:
    """Look through everything that a broker keeps, also while it runs; each finding is a line, and the exit code 1."""
    from coterie.cli.broker import data_folder

    sys.exit(data_folder.check_data(data))


@broker_app.command("backup")
def back_broker_up(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", parser=folder, help="The broker's folder.", show_default=False)
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", parser=folder, help="Folder for the copy.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a copy that is there.")] = False,
) -> None:
    """Copy everything that a broker keeps, also while it runs: what was acknowledged before is in the copy."""
    interrupt_on_signals()
    from coterie.cli.broker import data_folder

    sys.exit(data_folder.back_up_data(data, target, force=force))
