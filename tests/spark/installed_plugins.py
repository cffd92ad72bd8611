"""Installs the plug-in :class:`tests.blocking_source.BlockingSource` in the process of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.spark.connector_keys import common_connector_definition
from coterie.spark.plugin_list import all_plugins
from coterie.spark.plugins import sink_class_key, source_by_name, source_class_key
from tests import blocking_source


@contextmanager
def installed_blocking_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Context manager: in the block the plug-in is installed in ``folder``, and its calls may block. At the end no call
    blocks, all patches of ``monkeypatch`` are undone, and the installed plug-ins are those from before."""
    blocking_source.install(folder)
    monkeypatch.syspath_prepend(str(folder))
    forget_installed_plugins()
    blocking_source.go_on.clear()
    yield
    blocking_source.end_all_calls()
    monkeypatch.undo()
    forget_installed_plugins()


def forget_installed_plugins() -> None:
    """Let the installed plug-ins be looked up again. No call into a plug-in may run: it would store those that it has
    found before."""
    source_by_name.cache_clear()
    forget_lists_of_plugins()


def forget_lists_of_plugins() -> None:
    """Let all that lists the sources and sinks be made again from those that are known now."""
    for function in (source_class_key, sink_class_key, common_connector_definition, all_plugins):
        function.cache_clear()
