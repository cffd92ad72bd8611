"""The jars that Spark's connectors need, for tests: fetched once into the user's cache, where workers look for them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from coterie.nouns.errors import WorldError
from coterie.spark.jar_fetch import fetch_and_replace_jars, has_pinned_digest
from coterie.spark.jars import Jar, default_jar_folder, jar_packages
from tests.kafka.real_kafka import ProgramUnavailableError


def lacking() -> list[Jar]:
    """The pinned jars that the folder lacks."""
    folder = default_jar_folder(os.environ)
    return [jar for package in jar_packages().values() for jar in package.jars if not has_pinned_digest(jar, folder)]


def fetched(print_line: Callable[[str], None]) -> Path:
    """The folder with all pinned jars; the first call on a machine fetches them and prints that.

    :raises ProgramUnavailableError: when they cannot be fetched.
    """
    folder = default_jar_folder(os.environ)
    if jars := lacking():
        print_line(
            f"Fetching {len(jars)} jars (once, {sum(jar.size_bytes for jar in jars) / 1e6:.0f} MB) into {folder} ..."
        )
        started_s = time.monotonic()
        try:
            fetch_and_replace_jars(jars, folder)
        except WorldError as error:
            raise ProgramUnavailableError(f"The jars of Spark's connectors cannot be had: {error}") from error
        print_line(f"Fetched {len(jars)} jars in {time.monotonic() - started_s:.0f} s.")
    return folder
