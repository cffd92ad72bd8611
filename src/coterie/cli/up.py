"""`coterie up`: a cluster on this machine until Ctrl-C."""

import time
from pathlib import Path

import typer

from coterie.cli.fleet import Fleet, FleetSettings
from coterie.cli.processes import Children
from coterie.nouns.errors import WorldError
from coterie.nouns.membership import GroupProtocolName


def run_cluster(
    *, workers: int, data: Path, broker_port: int, rest_port: int, group_protocol: GroupProtocolName
) -> int:
    """Run a broker and ``workers`` workers until Ctrl-C; then end them and return the exit code 0.

    :raises WorldError: when a port or the data folder cannot be used, the broker does not start, or all workers have
        ended and the group has no other member.
    """
    settings = FleetSettings(
        data_folder=data.absolute(), broker_port=broker_port, first_rest_port=rest_port, group_protocol=group_protocol
    )
    try:
        with Children(settings.data_folder / "logs") as children:
            fleet = Fleet(settings, children, print_line=typer.echo)
            fleet.check_ports_are_free(workers)
            fleet.check_data_folder_unlocked()
            typer.echo(
                f"Starting the broker and {workers} workers; data in {settings.data_folder}, logs in "
                f"{settings.data_folder / 'logs'}"
            )
            fleet.start_broker_and_wait()
            typer.echo(f"The broker is up at 127.0.0.1:{broker_port}")
            try:
                for number in range(workers):
                    fleet.start_worker(number)
                _run_until_group_is_empty(fleet)
                raise WorldError(
                    f"All workers of the group have ended; their logs are in {settings.data_folder / 'logs'}."
                )
            finally:
                typer.echo("Stopping: the workers finish their batches, then the broker ends")
                fleet.close()
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        raise WorldError(
            f"The data folder {settings.data_folder} cannot be used: {error.strerror}. Choose another with --data."
        ) from error


def _run_until_group_is_empty(fleet: Fleet) -> None:
    """Print which workers are up; return once all workers of ``fleet`` have ended and the group has no other member.

    :raises WorldError: when the broker repeatedly ends right after its start.
    """
    starting_numbers = set(fleet.workers)
    while fleet.workers:
        fleet.handle_ended_children()
        for number in sorted(starting_numbers & fleet.workers.keys()):
            if fleet.is_worker_ready(number):
                starting_numbers.discard(number)
                typer.echo(f"worker-{number} is up at {fleet.settings.rest_url(number)}")
                if not starting_numbers:
                    typer.echo("All workers are up. Ctrl-C stops everything.")
        time.sleep(0.2)
    if fleet.may_group_have_members():
        typer.echo(
            "All workers that this command started have ended. The broker runs until the group has no member; "
            "a killed worker is a member until its session ends. Ctrl-C stops the broker."
        )
    while fleet.may_group_have_members():
        fleet.handle_ended_children()
        time.sleep(1)
