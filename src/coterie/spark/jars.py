"""Which jars connectors need beside PySpark's own, and whether a JVM has them.

A JVM's class path is fixed at its start, so jars belong to a worker, not to a connector. ``jars.toml`` pins each jar.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    # `coterie jars` starts at once: it needs no Spark.
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One pinned jar."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str
    class_name: str | None
    """A class that only this jar has; None where the other jars of the package are proof enough."""

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """The jars that ``coterie jars fetch NAME`` brings."""

    name: str
    serves: str
    """What a worker can do with these jars."""
    jars: tuple[Jar, ...]
    settings: Mapping[str, str]
    """Settings that a session with these jars needs."""


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


def missing(spark: "SparkSession", name: str) -> str | None:
    """What the JVM of ``spark`` lacks of the package ``name``, and what to do; None when it lacks nothing.

    The JVM is asked for a class of each jar, so jars that a user has put there by other means count.
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
    """The sentence of :func:`missing` for each package of which the JVM of ``spark`` lacks a jar."""
    return {name: sentence for name in packages() if (sentence := missing(spark, name)) is not None}


def _has_class(spark: "SparkSession", name: str) -> bool:
    jvm = spark._jvm
    assert jvm is not None, "a session in this process has a JVM"
    # Spark looks for a data source by this loader; it sees spark.jars and spark.jars.packages too.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        # ClassNotFoundException, or NoClassDefFoundError when a jar of its superclass is missing.
        return False
    return True
