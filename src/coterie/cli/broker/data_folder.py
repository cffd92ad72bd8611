"""`coterie broker check` and `coterie broker backup`: check and copy a broker's data folder."""

from pathlib import Path

import typer

from coterie.broker.settings import BrokerSettings
from coterie.broker.upkeep.backup import back_up
from coterie.broker.upkeep.check import check


def check_data(data: Path) -> int:
    """Print each finding on a line; returns the exit code.

    :raises WorldError: when there is no log in the folder.
    """
    path = BrokerSettings(data_path=data).log_path
    findings = 0
    for finding in check(path, tell=_tell):
        findings += 1
        typer.echo(finding)
    if findings:
        typer.echo(f"{path}: {findings} findings; restore a backup, or start a broker on the readable data", err=True)
        return 1
    typer.echo(f"{path}: no errors found")
    return 0


def back_up_data(data: Path, target: Path, *, force: bool) -> int:
    """Copy the folder's log; returns the exit code.

    :raises WorldError: when it cannot be copied.
    """
    source, copy = BrokerSettings(data_path=data), BrokerSettings(data_path=target)
    size_bytes = back_up(source.log_path, copy.log_path, copy.lock_path, force=force, tell=_tell)
    typer.echo(f"{copy.log_path}: {size_bytes / 1_000_000:.1f} MB; start a broker on this copy with --data {target}")
    return 0


def _tell(line: str) -> None:
    typer.echo(line, err=True)
