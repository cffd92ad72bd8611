"""`coterie jars …`: fetches the jars that connectors need, lists them and archives their classes."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from coterie.config.worker import check_repository_url
from coterie.spark.jar_fetch import fetch, has_pinned_digest
from coterie.spark.jars import FoundJars, Jar, Package, default_folder, is_version_of, packages, session_settings


def fetch_missing(names: Sequence[str], to: Path | None, mirror: str) -> None:
    """Fetch those jars of the packages ``names`` that are missing or damaged in the folder ``to``; print the result.

    Without ``names`` these are the jars of all packages. ``to`` None is the default folder. ``mirror`` is the URL of a
    Maven repository.

    :raises typer.BadParameter: when ``mirror`` is not a URL of a repository, or a name is not that of a package.
    :raises WorldError: when there is no default folder, or as described at :func:`coterie.spark.jar_fetch.fetch`.
    """
    try:
        check_repository_url(mirror)
    except ValueError as error:
        raise typer.BadParameter(f"--mirror {error}") from None
    folder = to or default_folder(os.environ)
    jars = [jar for package in _named(names) for jar in package.jars]
    lacking = [jar for jar in jars if not has_pinned_digest(jar, folder)]
    if lacking:
        size_bytes = sum(jar.size_bytes for jar in lacking)
        typer.echo(f"Fetching {len(lacking)} jars, {size_bytes / 1e6:.1f} MB, into {folder}", err=True)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("", total=size_bytes)

            def show_progress(jar: Jar, count: int) -> None:
                progress.update(bar, description=jar.file_name, advance=count)

            fetch(lacking, folder, mirror=mirror, on_bytes=show_progress)
    typer.echo(
        f"{len(jars)} jars are in {folder} ({len(lacking)} of them new); workers that start from now on use them"
    )


def show(folder: Path | None) -> None:
    """Print each pinned jar's state in ``folder`` (None: the default folder) and its coordinates; then the other jars.

    A folder that does not exist counts as empty.

    :raises WorldError: when the folder cannot be read, or there is no default folder.
    """
    folder = folder or default_folder(os.environ)
    found = FoundJars.in_folder(folder)
    typer.echo(f"The jars in {folder}:")
    for package in packages().values():
        typer.echo(f"{package.name}: {package.serves}")
        for jar in package.jars:
            typer.echo(f"    {_state(jar, folder, found):<8} {jar.coordinates}")
    pinned = [jar for package in packages().values() for jar in package.jars]
    for path in found.used:
        if not any(is_version_of(jar, path) for jar in pinned):
            typer.echo(f"{path.name} is an additional jar in the folder; workers use it")
    for path in found.unused:
        typer.echo(f"{path.name} is not used: the folder also has the version that Coterie was tested with")
    lacking = [name for name, package in packages().items() if not found.has(package)]
    if lacking:
        typer.echo(f"To fetch the missing jars: coterie jars fetch {' '.join(lacking)}")


def archive(folder: Path | None) -> None:
    """Write the archive of classes for workers that use the jars in ``folder``, unless the archive exists.

    ``folder`` None is the default folder of jars.

    :raises WorldError: when there is no default folder or no suitable Java, the folder cannot be read, or as described
        at :func:`coterie.spark.warmup.write_archive`.
    """
    from coterie.spark.class_archive import archive_path
    from coterie.spark.java import find_java_home
    from coterie.spark.session import settings_for
    from coterie.spark.settings import SparkConfig
    from coterie.spark.warmup import write_archive

    jars = session_settings(folder or default_folder(os.environ), {})
    with tempfile.TemporaryDirectory(prefix="coterie-archive-") as name:
        scratch = Path(name)
        path = archive_path(find_java_home(scratch, os.environ), settings_for(jars, scratch), os.environ)
        if path.exists():
            typer.echo(f"{path} exists already; workers use it")
            return
        typer.echo("Starting Spark once to write an archive of its classes; this takes about a minute ...", err=True)
        write_archive(
            SparkConfig(
                checkpoint_location=scratch / "checkpoints", scratch=scratch, log_file=scratch / "log", settings=jars
            )
        )
    size_bytes = path.stat().st_size
    typer.echo(f"{path} is written ({size_bytes / 1e6:.0f} MB); workers that start from now on use it")


def _state(jar: Jar, folder: Path, found: FoundJars) -> str:
    """The state of ``jar`` in ``folder`` as text: there, damaged, missing, or another version is used instead."""
    match has_pinned_digest(jar, folder):
        case True:
            return "there"
        case False:
            return "damaged (its SHA-256 is not the pinned one)"
        case None:
            others = [path.name for path in found.used if is_version_of(jar, path)]
            return f"{', '.join(others)} instead of" if others else "missing"


def _named(names: Sequence[str]) -> list[Package]:
    """Return the packages called ``names``; all packages if there are no names.

    :raises typer.BadParameter: when a name is not the name of a package.
    """
    for name in names:
        if name not in packages():
            raise typer.BadParameter(f"there is no package {name}; the packages are {', '.join(packages())}")
    return [package for name, package in packages().items() if not names or name in names]
