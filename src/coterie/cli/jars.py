"""`coterie jars …`: fetches the jars that connectors need, lists them and archives their classes."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from coterie.config.worker import check_repository_url
from coterie.spark.jar_fetch import fetch_and_replace_jars, has_pinned_digest
from coterie.spark.jars import (
    FoundJars,
    Jar,
    JarPackage,
    default_jar_folder,
    is_version_of,
    jar_packages,
    jar_settings_unless_user_sets_jars,
)


def fetch_missing_or_damaged_jars(package_names: Sequence[str], target_folder: Path | None, mirror: str) -> None:
    """Fetch those jars of the packages ``package_names`` that are missing or damaged in the folder ``target_folder``;
    print the result.

    Without ``package_names`` these are the jars of all packages. ``target_folder`` None is the default folder.
    ``mirror`` is the URL of a Maven repository.

    :raises typer.BadParameter: when ``mirror`` is not a URL of a repository, or a name is not that of a package.
    :raises WorldError: when there is no default folder, or as described at
        :func:`coterie.spark.jar_fetch.fetch_and_replace_jars`.
    """
    try:
        check_repository_url(mirror)
    except ValueError as error:
        raise typer.BadParameter(f"--mirror {error}") from None
    folder = target_folder or default_jar_folder(os.environ)
    jars = [jar for package in _find_packages_or_all(package_names) for jar in package.jars]
    missing_jars = [jar for jar in jars if not has_pinned_digest(jar, folder)]
    if missing_jars:
        size_bytes = sum(jar.size_bytes for jar in missing_jars)
        typer.echo(f"Fetching {len(missing_jars)} jars, {size_bytes / 1e6:.1f} MB, into {folder}", err=True)
        console = Console(stderr=True)
        progress_columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*progress_columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("", total=size_bytes)

            def show_progress(jar: Jar, byte_count: int) -> None:
                progress.update(bar, description=jar.file_name, advance=byte_count)

            fetch_and_replace_jars(missing_jars, folder, repository_url=mirror, on_chunk=show_progress)
    typer.echo(
        f"{len(jars)} jars are in {folder} ({len(missing_jars)} of them new); workers that start from now on use them"
    )


def print_jars(folder: Path | None) -> None:
    """Print the state in ``folder`` (None: the default folder) and the coordinates of each jar that Coterie was tested
    with; then the other jars in the folder.

    A folder that does not exist counts as empty.

    :raises WorldError: when the folder cannot be read, or there is no default folder.
    """
    folder = folder or default_jar_folder(os.environ)
    found_jars = FoundJars.find_in_folder(folder)
    typer.echo(f"The jars in {folder}:")
    for package in jar_packages().values():
        typer.echo(f"{package.name}: {package.needed_for}")
        for jar in package.jars:
            typer.echo(f"    {_jar_state_text(jar, folder, found_jars):<8} {jar.coordinates}")
    pinned_jars = [jar for package in jar_packages().values() for jar in package.jars]
    for path in found_jars.used:
        if not any(is_version_of(jar, path) for jar in pinned_jars):
            typer.echo(f"{path.name} is an additional jar in the folder; workers use it")
    for path in found_jars.unused:
        typer.echo(f"{path.name} is not used: the folder also has the version that Coterie was tested with")
    missing_packages = [name for name, package in jar_packages().items() if not found_jars.has_package(package)]
    if missing_packages:
        typer.echo(f"To fetch the missing jars: coterie jars fetch {' '.join(missing_packages)}")


def write_class_data_archive_if_missing(folder: Path | None) -> None:
    """Write the class-data archive of the JVM for workers that use the jars in ``folder``, so that they start sooner;
    do nothing if the archive exists. Starts Spark.

    ``folder`` None is the default folder of jars.

    :raises WorldError: when there is no default folder or no suitable Java, the folder cannot be read, or as described
        at :func:`coterie.spark.warmup.run_spark_to_write_class_archive`.
    """
    from coterie.spark.class_archive import archive_path
    from coterie.spark.java import find_or_write_java_home
    from coterie.spark.session import make_spark_settings
    from coterie.spark.settings import SparkConfig
    from coterie.spark.warmup import run_spark_to_write_class_archive

    jars = jar_settings_unless_user_sets_jars(folder or default_jar_folder(os.environ), {})
    with tempfile.TemporaryDirectory(prefix="coterie-archive-") as scratch_folder_name:
        scratch_folder = Path(scratch_folder_name)
        settings = make_spark_settings(jars, scratch_folder)
        path = archive_path(find_or_write_java_home(scratch_folder, os.environ), settings, os.environ)
        if path.exists():
            typer.echo(f"{path} exists already; workers use it")
            return
        typer.echo("Starting Spark once to write an archive of its classes; this takes about a minute ...", err=True)
        run_spark_to_write_class_archive(
            SparkConfig(
                checkpoint_location=scratch_folder / "checkpoints",
                scratch_folder=scratch_folder,
                jvm_log_file=scratch_folder / "log",
                user_settings=jars,
            )
        )
    size_bytes = path.stat().st_size
    typer.echo(f"{path} is written ({size_bytes / 1e6:.0f} MB); workers that start from now on use it")


def _jar_state_text(jar: Jar, folder: Path, found_jars: FoundJars) -> str:
    """The state of ``jar`` in ``folder`` as text: present, damaged, missing, or another version is used instead."""
    match has_pinned_digest(jar, folder):
        case True:
            return "present"
        case False:
            return "damaged (its SHA-256 is not the pinned one)"
        case None:
            other_versions = [path.name for path in found_jars.used if is_version_of(jar, path)]
            return f"{', '.join(other_versions)} instead of" if other_versions else "missing"


def _find_packages_or_all(package_names: Sequence[str]) -> list[JarPackage]:
    """Return the packages with these names; all packages if ``package_names`` is empty.

    :raises typer.BadParameter: when a name is not the name of a package.
    """
    for name in package_names:
        if name not in jar_packages():
            raise typer.BadParameter(f"there is no package {name}; the packages are {', '.join(jar_packages())}")
    return [package for name, package in jar_packages().items() if not package_names or name in package_names]
