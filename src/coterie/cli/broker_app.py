"""`coterie broker`: how it is called; without a word behind it, it runs the broker."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.stderr import log_to_stderr

broker_app = typer.Typer(invoke_without_command=True)


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
        Path, typer.Option("--data", help="Folder for everything that is kept: topics, groups, users.")
    ] = Path("coterie-data/broker"),
    initial_delay_ms: Annotated[
        int,
        typer.Option(
            "--initial-delay-ms", min=0, help="How long an empty group waits for more members before its first round."
        ),
    ] = 3_000,
    frame_size_max: Annotated[
        int, typer.Option("--frame-size-max", min=1_024, help="Largest request in bytes; a larger one is refused.")
    ] = 104_857_600,
    connections_max: Annotated[
        int, typer.Option("--connections-max", min=1, help="How many connections may be open.")
    ] = 2_000,
    in_flight_max: Annotated[
        int,
        typer.Option(
            "--in-flight-max", min=1, help="How many requests of one connection are taken before the first is answered."
        ),
    ] = 32,
) -> None:
    """Run the embedded broker: topics, and classic groups of dynamic members, over Kafka's own protocol.

    It is for one machine; in a real cluster workers use Kafka brokers.
    """
    if context.invoked_subcommand is not None:
        return
    log_to_stderr("INFO")
    from coterie.cli import broker as broker_

    settings = broker_.settings(
        listen,
        data,
        advertise=advertise,
        initial_delay_ms=initial_delay_ms,
        frame_size_max=frame_size_max,
        connections_max=connections_max,
        in_flight_max=in_flight_max,
    )
    sys.exit(broker_.run(settings))
