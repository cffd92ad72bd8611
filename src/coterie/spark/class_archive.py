"""Archives of Spark's classes, from which Java starts Spark in half the processor time, so a worker is ready sooner.

Java calls this application class-data sharing. ``coterie jars archive`` writes an archive for the Java of the machine
and for the class path that workers have there; every worker looks for that archive when it starts Spark. The name of an
archive is made of that Java and of the jars, with their sizes and times. Java compares the class path again, and does
not use an archive that does not fit.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from coterie.nouns.errors import WorldError
from coterie.spark.jars import default_folder

JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""The setting that names the archive. Spark puts these options before those of ``spark.driver.extraJavaOptions``."""


def archive_path(java_home: Path, settings: Mapping[str, str], environment: Mapping[str, str]) -> Path:
    """Where the archive is, or would be, for a session with these ``spark.*`` settings.

    :raises WorldError: when the user has no home folder.
    """
    digest = hashlib.sha256()
    # Not by its path: a wrapper of Java is written anew for each worker.
    for file in (java_home / "bin" / "java", java_home / "release"):
        digest.update(file.read_bytes() if file.exists() else b"")
    added = settings.get("spark.driver.extraClassPath", "")
    for path in (*sorted(Path(_find_spark_home(), "jars").iterdir()), *map(Path, added.split(os.pathsep))):
        stat = path.stat() if path.exists() else None
        facts = "missing" if stat is None else f"{stat.st_size} {stat.st_mtime_ns}"
        digest.update(f"{path} {facts}\n".encode())
    return default_folder(environment).parent / "classes" / f"spark-{digest.hexdigest()[:16]}.jsa"


def with_archive(settings: Mapping[str, str], java_home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """``settings``, and the archive for them where there is one and the user has not set :data:`JAVA_OPTIONS`."""
    try:
        archive = archive_path(java_home, settings, environment)
        usable = os.access(archive, os.R_OK)
    except (WorldError, OSError):
        # The archive only saves time: a worker starts without it.
        return dict(settings)
    return {**({JAVA_OPTIONS: option("SharedArchiveFile", archive)} if usable else {}), **settings}


def option(name: str, path: Path) -> str:
    """``-XX:name=path`` as Spark reads a list of options: in quotes, since the path can have spaces."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"-XX:{name}={escaped}"'
