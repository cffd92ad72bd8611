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

from coterie.config.worker import USER_JAR_KEYS
from coterie.nouns.errors import WorldError

if TYPE_CHECKING:
    # `coterie jars` needs no Spark: without this import at run time it starts fast.
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A jar of a fixed version, size and SHA-256, as ``jars.toml`` contains it."""

    maven_group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str
    class_name_to_check: str | None
    """A class that only this jar contains: a JVM that can load the class has the jar. None for a jar that is not
    checked, because the check of the package's other jars is sufficient."""

    @property
    def coordinates(self) -> str:
        return f"{self.maven_group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path_in_repository(self) -> str:
        """The path of the jar in a Maven repository, relative to the repository's URL."""
        return f"{self.maven_group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarPackage:
    """The jars that ``coterie jars fetch NAME`` fetches together."""

    name: str
    needed_for: str
    """The features of a worker that need these jars."""
    jars: tuple[Jar, ...]
    spark_settings: Mapping[str, str]
    """Spark settings that a session with these jars needs."""


@cache
def jar_packages() -> Mapping[str, JarPackage]:
    """Every package of ``jars.toml``, by name."""
    text = (files("coterie.spark") / "jars.toml").read_text(encoding="utf-8")
    package_by_name: dict[str, JarPackage] = {}
    for name, package in tomllib.loads(text).items():
        jars = []
        for jar in package["jars"]:
            group, artifact, version = jar["coordinates"].split(":")
            size_bytes, sha256 = jar["size_bytes"], jar["sha256"]
            jars.append(
                Jar(
                    maven_group=group,
                    artifact=artifact,
                    version=version,
                    size_bytes=size_bytes,
                    sha256=sha256,
                    class_name_to_check=jar.get("class"),
                )
            )
        settings = package.get("settings", {})
        package_by_name[name] = JarPackage(
            name=name, needed_for=package["serves"], jars=tuple(jars), spark_settings=settings
        )
    return package_by_name


# -- the folder -------------------------------------------------------------------------------------------------------


def default_jar_folder(environment: Mapping[str, str]) -> Path:
    """``coterie/jars`` in the user's cache folder: ``XDG_CACHE_HOME`` if it is an absolute path, else ``~/.cache``.

    :raises WorldError: when ``XDG_CACHE_HOME`` is no absolute path and the user has no home folder.
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
    """The jars that a folder contains: those that Spark may use, and those that it must not use."""

    used: tuple[Path, ...]
    """The jars to add to Spark's class path."""
    unused: tuple[Path, ...]
    """Jars that must not be added: other versions of a jar whose pinned version is in the folder too. Two versions of
    one jar conflict."""

    @classmethod
    def find_in_folder(cls, folder: Path) -> "FoundJars":
        """All jars in ``folder``, pinned or not, divided into those to use and those not to use; empty when the folder
        does not exist.

        :raises WorldError: when the folder cannot be read.
        """
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".jar")
        except FileNotFoundError:
            paths = []
        except OSError as error:
            raise WorldError(f"The folder of jars {folder} (jars.dir) cannot be read: {error.strerror}") from error
        names = {path.name for path in paths}
        pinned_jars = [jar for package in jar_packages().values() for jar in package.jars if jar.file_name in names]
        unused = {
            path for path in paths for jar in pinned_jars if is_version_of(jar, path) and path.name != jar.file_name
        }
        return cls(used=tuple(path for path in paths if path not in unused), unused=tuple(sorted(unused)))

    def has_package(self, package: JarPackage) -> bool:
        """Whether the used jars contain each jar of ``package``, in any version."""
        return all(any(is_version_of(jar, path) for path in self.used) for jar in package.jars)


def is_version_of(jar: Jar, path: Path) -> bool:
    """Whether ``path`` has the file name of ``jar``, in the pinned or in another version."""
    return re.fullmatch(rf"{re.escape(jar.artifact)}-\d.*\.jar", path.name) is not None


def jar_settings_unless_user_sets_jars(folder: Path, user_settings: Mapping[str, str]) -> dict[str, str]:
    """The Spark settings that add the jars in ``folder`` to Spark, and the settings that complete packages of jars need
    (:attr:`JarPackage.spark_settings`).

    ``user_settings``: the user's ``spark.*`` settings. If these name jars themselves (:data:`USER_JAR_KEYS`), the
    result is empty and a warning is logged. It is also empty when ``folder`` contains no jar or does not exist.

    :raises WorldError: when the folder cannot be read.
    """
    found_jars = FoundJars.find_in_folder(folder)
    if not found_jars.used:
        return {}
    if user_jar_keys := [key for key in USER_JAR_KEYS if user_settings.get(key)]:
        log.warning(
            "%s is set for this worker, so the %d jars in %s are not added to Spark; remove the setting to use them",
            " and ".join(user_jar_keys),
            len(found_jars.used),
            folder,
        )
        return {}
    for path in found_jars.unused:
        log.warning(
            "The jar %s is not used: its folder also contains the version that Coterie was tested with; delete this "
            "jar",
            path,
        )
    settings: dict[str, str] = {}
    for package in jar_packages().values():
        if found_jars.has_package(package):
            settings |= package.spark_settings
    if user_settings.get("spark.master", "local").startswith("local"):
        # Executors run in this JVM. spark.jars would copy each jar into their folder at the first job.
        return settings | {"spark.driver.extraClassPath": os.pathsep.join(map(str, found_jars.used))}
    return settings | {"spark.jars": ",".join(path.as_uri() for path in found_jars.used)}


# -- the JVM ----------------------------------------------------------------------------------------------------------


def missing_jars_message(spark: "SparkSession", name: str) -> str | None:
    """A message that names the jars of the package ``name`` that the JVM of ``spark`` does not have, and what to do;
    None when no jar is missing.

    A jar is tested by loading its :attr:`Jar.class_name_to_check`, so jars that a user has added in another way are
    found too.
    """
    missing_jars = [
        jar
        for jar in jar_packages()[name].jars
        if jar.class_name_to_check and not _jvm_has_class(spark, jar.class_name_to_check)
    ]
    if not missing_jars:
        return None
    coordinates = ", ".join(jar.coordinates for jar in missing_jars)
    return (
        f"The worker's JVM does not have {coordinates}: run `coterie jars fetch {name}` on every worker, then restart "
        "the workers; or name these coordinates in the worker's spark.jars.packages"
    )


def missing_jars_message_by_package(spark: "SparkSession") -> dict[str, str]:
    """For each package with a jar that the JVM of ``spark`` does not have, by the package's name: the message of
    :func:`missing_jars_message`."""
    return {name: message for name in jar_packages() if (message := missing_jars_message(spark, name)) is not None}


def _jvm_has_class(spark: "SparkSession", name: str) -> bool:
    """Whether the JVM of ``spark`` can load the Java class ``name``."""
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
