"""Connector plug-ins: what one has to offer, and how it is found by its class name or its short alias."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from coterie.config.definition import Definition

GROUP = "coterie.connectors"
"""The group of entry points under which a package offers its connectors: alias = class."""


class Plugin(Protocol):
    """The source side of a connector; transforms and sinks are the same for all."""

    @property
    def type(self) -> str:
        """``source`` or ``sink``, as REST shows it."""
        ...

    @property
    def prefix(self) -> str:
        """Keys that start with this are the plug-in's: one that it does not define is an error."""
        ...

    @property
    def options_prefix(self) -> str:
        """Keys that start with this go to Spark's reader; ``validate`` judges them."""
        ...

    def definition(self, config: Mapping[str, str]) -> Definition: ...

    def validate(self, spark: SparkSession, config: Mapping[str, str]) -> dict[str, list[str]]:
        """Errors by key that only Spark can tell; asked when the definition finds none."""
        ...

    def schema(self, spark: SparkSession, config: Mapping[str, str]) -> StructType: ...

    def split(self, config: Mapping[str, str], most: int) -> Sequence[Mapping[str, str]]:
        """What is added to the connector's config for each of at most ``most`` tasks."""
        ...

    def read(self, spark: SparkSession, config: Mapping[str, str]) -> DataFrame: ...

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """:raises WorldError: when a batch that was planned must not be read."""
        ...

    def check_read(self, spark: SparkSession, config: Mapping[str, str], checkpoint: Path, batch_id: int) -> None:
        """:raises WorldError: when a batch was not read as it was planned, so that its rows may not be seen."""
        ...


@cache
def plugins() -> Mapping[str, type[Plugin]]:
    """Every installed plug-in, by alias, by class name and by full class name."""
    found: dict[str, type[Plugin]] = {}
    for entry in entry_points(group=GROUP):
        plugin: type[Plugin] = entry.load()
        for name in (entry.name, plugin.__name__, f"{plugin.__module__}.{plugin.__qualname__}"):
            found[name] = plugin
    return found


def find_plugin(connector_class: str) -> Plugin | None:
    plugin = plugins().get(connector_class)
    return None if plugin is None else plugin()
