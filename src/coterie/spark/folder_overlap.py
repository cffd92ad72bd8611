"""Whether a connector would write files into the folder that its own source reads, or bad records into a folder that is
read for another reason.

Two folders overlap if they are the same folder, or one contains the other. Symbolic links and ``..`` are resolved on
this worker's file system. A folder that does not exist yet is compared by its path.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from operator import eq
from pathlib import Path

from coterie.nouns.errors import invalid_value_message
from coterie.spark.paths import path_of_config_value
from coterie.spark.plugins import ConfiguredSink, ConfiguredSource
from coterie.spark.prefixed_config import OPTION_PREFIX
from coterie.spark.sources.files import FileSource


def own_input_errors(source: ConfiguredSource, sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, if the folder that the sink writes overlaps the folder that a file source reads: the connector
    would read its own files, without end. Empty for other sources and sinks."""
    source_key, sink_key = source.config.user_key("path"), _written_folder_key(sink)
    if not issubclass(source.plugin, FileSource) or sink_key is None:
        return {}
    written = sink.config.config[sink_key].strip()
    relation = _relation(path_of_config_value(written), source)
    if relation is None:
        return {}
    message = (
        f"the connector would read its own files again, without end: this folder {relation} {source_key}, "
        f"{source.config.config[source_key].strip()}. Name two folders of which neither contains the other"
    )
    return {sink_key: [invalid_value_message(sink_key, written, message)]}


def overlaps_source_folder(source: ConfiguredSource, folder: Path) -> bool:
    """Whether ``folder`` overlaps the folder that a file source reads. False for another source."""
    return issubclass(source.plugin, FileSource) and _relation(folder, source) is not None


def overlaps_sink_folder(sink: ConfiguredSink, folder: Path) -> bool:
    """Whether ``folder`` overlaps the folder that the sink writes. False for a sink that writes no folder."""
    key = _written_folder_key(sink)
    return key is not None and _overlap(path_of_config_value(sink.config.config[key].strip()), folder, eq)


def _written_folder_key(sink: ConfiguredSink) -> str | None:
    """The user's key that names the folder that the sink writes: its key ``path``, or the option ``path`` of Spark's
    writer. None if the config has neither, or if the sink has no such key: a key without prefix is then the
    source's."""
    names = ["path"] if sink.config.user_key("path") in {key.name for key in sink.definition.keys} else []
    if OPTION_PREFIX in sink.plugin.free_key_prefixes:
        options = sink.config.values_under_prefix(OPTION_PREFIX)
        names += [OPTION_PREFIX + name for name in options if name.lower() == "path"]
    keys = map(sink.config.user_key, names)
    return next((key for key in keys if key in sink.config.config), None)


def _relation(written_folder: Path, source: ConfiguredSource) -> str | None:
    """How ``written_folder`` overlaps the folder that the file source reads, as the middle of a sentence. None if it
    does not, and if the config does not name the source's folder."""
    value = source.config.config.get(source.config.user_key("path"), "").strip()
    if not value:
        return None
    read_folder = path_of_config_value(value)
    # Spark takes the folder's path as a pattern.
    if not _overlap(written_folder, read_folder, lambda name, pattern: fnmatchcase(name, _python_pattern(pattern))):
        return None
    read_depth, written_depth = len(_names(read_folder)), len(_names(written_folder))
    if read_depth == written_depth:
        return "is that of"
    return "is in that of" if written_depth > read_depth else "contains that of"


def _overlap(folder: Path, other: Path, is_same_name: Callable[[str, str], bool]) -> bool:
    """Whether two folders overlap. ``is_same_name`` compares a name in the path of ``folder`` with that in the path of
    ``other`` at the same depth."""
    return all(is_same_name(*names) for names in zip(_names(folder), _names(other), strict=False))


def _names(folder: Path) -> tuple[str, ...]:
    """The names in the path of ``folder``, with symbolic links resolved, without the root."""
    return folder.resolve().parts[1:]


def _python_pattern(name: str) -> str:
    """Hadoop's pattern ``name`` as a pattern of :mod:`fnmatch` that matches at least the same names."""
    return re.sub(r"\{.*\}", "*", re.sub(r"\\.", "?", name)).replace("[^", "[!")
