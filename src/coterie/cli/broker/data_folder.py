"""`coterie broker check` and `coterie broker backup`: check and copy a broker's data folder."""

from pathlib import Path

import typer

from coterie.broker.maintenance.backup import back_up_log_and_return_size
from coterie.broker.maintenance.check import log_file_findings
from coterie.broker.settings import BrokerSettings


def run_check_command(data: Path) -> int:
    """Check the log in the broker's folder ``data``, and print each error found on a line.

    Returns the exit code: 0 without errors, else 1.

    :raises WorldError: when there is no log in the folder.
    """
    path = BrokerSettings(data_path=data).log_path
    finding_count = 0
    for finding in log_file_findings(path, report_progress=_print_progress_to_stderr):
        finding_count += 1
        typer.echo(finding)
    if finding_count:
        typer.echo(
            f"{path}: {finding_count} findings; restore a backup, or start a broker on the readable data", err=True
        )
        return 1
    typer.echo(f"{path}: no errors found")
    return 0


def run_backup_command(data: Path, target: Path, *, force: bool) -> int:
    """Copy the log of the broker's folder ``data`` into the folder ``target``; returns the exit code 0.

    With ``force``, an existing copy is overwritten.

    :raises WorldError: see :func:`coterie.broker.maintenance.backup.back_up_log_and_return_size`.
    """
    source, copy = BrokerSettings(data_path=data), BrokerSettings(data_path=target)
    size_bytes = back_up_log_and_return_size(
        source.log_path, copy.log_path, copy.lock_path, force=force, report_progress=_print_progress_to_stderr
    )
    typer.echo(f"{copy.log_path}: {size_bytes / 1_000_000:.1f} MB; start a broker on this copy with --data {target}")
    return 0


def _print_progress_to_stderr(line: str) -> None:
    """Print ``line`` to standard error."""
    typer.echo(line, err=True)
