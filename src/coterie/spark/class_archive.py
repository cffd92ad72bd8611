"""Archives of Spark's classes, with which Java starts Spark in half the CPU time, so that a worker is ready sooner.

Java calls this application class-data sharing. ``coterie jars archive`` writes an archive for the machine's Java and
for the class path of the machine's workers. Each worker uses this archive, if it exists, when it starts Spark. The
archive's name is a digest of that Java and of the jars with their sizes and times. Java compares the class path again,
and does not use an archive that does not match.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from coterie.nouns.errors import WorldError
from coterie.spark.jars import default_jar_folder

DEFAULT_JAVA_OPTIONS_KEY = "spark.driver.defaultJavaOptions"
"""The name of the Spark setting by which Java gets the archive's path. Its value is a list of Java options, which Spark
puts before those of ``spark.driver.extraJavaOptions``."""


def archive_path(java_home: Path, settings: Mapping[str, str], environment: Mapping[str, str]) -> Path:
    """The path of the archive for a Spark with this Java and these ``spark.*`` settings; the archive need not exist.

    :raises WorldError: see :func:`default_jar_folder`.
    :raises OSError: when the files of Java or the folder of Spark's jars cannot be read.
    """
    digest = hashlib.sha256()
    # The contents and not the path: each worker writes its own Java wrapper to another path.
    for file in (java_home / "bin" / "java", java_home / "release"):
        digest.update(file.read_bytes() if file.exists() else b"")
    extra_class_path = settings.get("spark.driver.extraClassPath", "")
    for path in (*sorted(Path(_find_spark_home(), "jars").iterdir()), *map(Path, extra_class_path.split(os.pathsep))):
        stat = path.stat() if path.exists() else None
        size_and_time = "missing" if stat is None else f"{stat.st_size} {stat.st_mtime_ns}"
        digest.update(f"{path} {size_and_time}\n".encode())
    return default_jar_folder(environment).parent / "classes" / f"spark-{digest.hexdigest()[:16]}.jsa"


def with_archive_option_if_usable(
    settings: Mapping[str, str], java_home: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """``settings``, plus the setting :data:`DEFAULT_JAVA_OPTIONS_KEY` with the archive's path if the archive can be
    read and the user has not set this key."""
    try:
        archive = archive_path(java_home, settings, environment)
        is_usable = os.access(archive, os.R_OK)
    except (WorldError, OSError):
        # The archive only saves time: a worker starts without it.
        return dict(settings)
    return {
        **({DEFAULT_JAVA_OPTIONS_KEY: jvm_option_with_path("SharedArchiveFile", archive)} if is_usable else {}),
        **settings,
    }


def jvm_option_with_path(name: str, path: Path) -> str:
    """The Java option ``-XX:name=path``, quoted for a list of options in Spark's settings: the path can contain
    spaces."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"-XX:{name}={escaped}"'
