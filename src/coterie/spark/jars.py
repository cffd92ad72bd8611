"""The jars that connectors need in addition to PySpark's own, and the check whether a JVM has them.

A JVM's class path is fixed at its start, so jars belong to a worker, not to a connector. ``jars.toml`` pins each jar.
"""

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from coterie.config.worker import JARS_OF_USER
from coterie.nouns.errors import WorldError

if TYPE_CHECKING:
    # `coterie jars` needs no Spark: without this import at run time it starts fast.
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One pinned jar."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str
    class_name: str | None
    """A class that only this jar contains, by which a JVM is checked; None where the check of the package's other jars
    is sufficient."""

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The path of the jar in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The jars that ``coterie jars fetch NAME`` fetches."""

    name: str
    serves: str
    """The features of a worker that need these jars."""
    jars: tuple[Jar, ...]
    settings: Mapping[str, str]
    """Spark settings that a session with these jars needs."""


@cache
def packages() -> Mapping[str, Package]:
    """Every package by name."""
    text = (files("coterie.spark") / "jars.toml").read_text(encoding="utf-8")
    found: dict[str, Package] = {}
    for name, package in tomllib.loads(text).items():
        jars = []
        for jar in package["jars"]:
            group, artifact, version = jar["coordinates"].split(":")
            size_bytes, sha256 = jar["size_bytes"], jar["sha256"]
            jars.append(
                Jar(
                    group=group,
                    artifact=artifact,
                    version=version,
                    size_bytes=size_bytes,
                    sha256=sha256,
                    class_name=jar.get("class"),
                )
            )
        settings = package.get("settings", {})
        found[name] = Package(name=name, serves=package["serves"], jars=tuple(jars), settings=settings)
    return found


# -- the folder -------------------------------------------------------------------------------------------------------


def default_folder(environment: Mapping[str, str]) -> Path:
    """``coterie/jars`` in the user's cache folder (XDG_CACHE_HOME).

    :raises WorldError: when the user has no home folder.
    """
    cache_home = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):
        return Path(cache_home, "coterie", "jars")
    try:
        return Path.home() / ".cache" / "coterie" / "jars"
    except RuntimeError as error:
        raise WorldError(
            "This user has no home folder for the jars. Name a folder: coterie jars fetch --to FOLDER, and "
            "jars.dir=FOLDER in the workers' files"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJars:
    """The jars in a folder."""

    used: tuple[Path, ...]
    """The jars that are added to a session."""
    unused: tuple[Path, ...]
    """Other versions of a pinned jar in the folder, which are not added: two versions of one jar conflict."""

    @classmethod
    def in_folder(cls, folder: Path) -> "FoundJars":
        """All jars in ``folder``, pinned or not; empty when the folder does not exist.

        :raises WorldError: when the folder cannot be read.
        """
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".jar")
        except FileNotFoundError:
            paths = []
        except OSError as error:
            raise WorldError(f"The folder of jars {folder} (jars.dir) cannot be read: {error.strerror}") from error
        names = {path.name for path in paths}
        there = [jar for package in packages().values() for jar in package.jars if jar.file_name in names]
        unused = {path for path in paths for jar in there if is_version_of(jar, path) and path.name != jar.file_name}
        return cls(used=tuple(path for path in paths if path not in unused), unused=tuple(sorted(unused)))

    def has(self, package: Package) -> bool:
        """Whether the used jars contain each jar of ``package``, in any version."""
        return all(any(is_version_of(jar, path) for path in self.used) for jar in package.jars)


def is_version_of(jar: Jar, path: Path) -> bool:
    """Whether ``path`` has the file name of ``jar`` in any version."""
    return re.fullmatch(rf"{re.escape(jar.artifact)}-\d.*\.jar", path.name) is not None


def session_settings(folder: Path, users: Mapping[str, str]) -> dict[str, str]:
    """The Spark settings that add the jars in ``folder`` to a session. ``users``: the settings that the user chose.

    :raises WorldError: when the folder cannot be read.
    """
    found = FoundJars.in_folder(folder)
    if not found.used:
        return {}
    if own := [key for key in JARS_OF_USER if users.get(key)]:
        log.warning("%s is set, so the %d jars in %s are not added", " and ".join(own), len(found.used), folder)
        return {}
    for path in found.unused:
        log.warning("%s is not used: the folder has the version that Coterie was tested with; delete this one", path)
    settings: dict[str, str] = {}
    for package in packages().values():
        if found.has(package):
            settings |= package.settings
    if users.get("spark.master", "local").startswith("local"):
        # Executors run in this JVM. spark.jars would copy each jar into their folder at the first job.
        return settings | {"spark.driver.extraClassPath": os.pathsep.join(map(str, found.used))}
    return settings | {"spark.jars": ",".join(path.as_uri() for path in found.used)}


# -- the JVM ----------------------------------------------------------------------------------------------------------


def missing(spark: "SparkSession", name: str) -> str | None:
    """The message which jars of the package ``name`` are missing in the JVM of ``spark``, and what to do; None when no
    jar is missing.

    Each jar is tested by loading a class of it, so jars that a user has added in another way are found too.
    """
    lacking = [jar for jar in packages()[name].jars if jar.class_name and not _has_class(spark, jar.class_name)]
    if not lacking:
        return None
    coordinates = ", ".join(jar.coordinates for jar in lacking)
    return (
        f"The worker's JVM does not have {coordinates}: run `coterie jars fetch {name}` on every worker, then restart "
        "the workers; or name these coordinates in the worker's spark.jars.packages"
    )


def missing_packages(spark: "SparkSession") -> dict[str, str]:
    """The message of :func:`missing`, by package, for each package with a missing jar in the JVM of ``spark``."""
    return {name: sentence for name in packages() if (sentence := missing(spark, name)) is not None}


def _has_class(spark: "SparkSession", name: str) -> bool:
    jvm = spark._jvm
    assert jvm is not None, "a session in this process has a JVM"
    # Spark loads data sources with this class loader; it also covers spark.jars and spark.jars.packages.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        # ClassNotFoundException, or NoClassDefFoundError when a jar of its superclass is missing.
        return False
    return True
