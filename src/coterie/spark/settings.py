"""The settings with which a worker runs Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.defaults import MAVEN_CENTRAL, OFFSET_FLUSH_INTERVAL_MS, PLUGIN_CALL_TIMEOUT_MS
from coterie.config.providers import ConfigProviders


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSettings:
    """The folder of the jars that a worker's connectors need, whether a worker fetches missing jars, and from where."""

    folder: Path
    fetches_missing_jars: bool = False
    """Whether pinned jars that are missing in ``folder``, or differ there, are fetched before Spark starts."""
    repository_url: str = field(default=MAVEN_CENTRAL, repr=False)
    """URL of the Maven repository; may contain a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """The users' Python code that a worker allows, and the Python that runs it."""

    allowed_modules: tuple[str, ...] = ()
    """Modules, and packages with all their modules, from which connectors may run functions; empty: connectors may run
    no functions."""
    executable: str | None = None
    """The Python executable that runs functions over rows; None means the worker's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """The settings with which a worker runs Spark."""

    checkpoint_location: Path
    """The folder of all checkpoints, shared by all workers."""
    scratch_folder: Path
    """The folder for temporary files of Spark and Coterie; each worker has its own."""
    jvm_log_file: Path
    """The file for the output of the JVM."""
    user_settings: Mapping[str, str] = field(default_factory=dict)
    """The user's ``spark.*`` settings, which override Coterie's."""
    worker_kafka_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of Kafka's clients: the defaults of Kafka sources and sinks, which a connector can override."""
    config_providers: ConfigProviders = field(default_factory=ConfigProviders)
    """The providers that resolve the references in configs of connectors and tasks."""
    jar_folder_settings: JarSettings | None = None
    """None means that Coterie adds no jars to Spark's own and to those of ``user_settings``."""
    python_settings: PythonSettings = PythonSettings()
    offset_flush_interval_ms: int = OFFSET_FLUSH_INTERVAL_MS
    """Interval at which the offsets of tasks that read from Kafka are committed to their connector's consumer group."""
    plugin_call_timeout_ms: int = PLUGIN_CALL_TIMEOUT_MS
    """Time limit of each stage of a call into a plug-in, except a batch and a stop."""
