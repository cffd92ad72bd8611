"""The lookup of plug-ins by name and version, in Connect's words."""

import pytest

from coterie.config.plugins import (
    Plugin,
    PluginType,
    PluginVersionError,
    UnknownPluginError,
    find_plugin,
    sorted_as_in_connect,
    version_error,
)

SOURCE = Plugin(class_name="b.Source", type=PluginType.SOURCE, version="4.3.1", aliases=("Source",))
SINK = Plugin(class_name="c.Sink", type=PluginType.SINK, version=None)
OTHERS = [Plugin(class_name="a.Both", type=type_, version="1") for type_ in reversed(PluginType)]


def test_plugins_are_listed_by_type_and_name() -> None:
    listed = sorted_as_in_connect([*OTHERS, SOURCE, SINK])
    assert [(plugin.type.value, plugin.class_name) for plugin in listed] == [
        ("sink", "a.Both"),
        ("sink", "c.Sink"),
        ("source", "a.Both"),
        ("source", "b.Source"),
        ("transformation", "a.Both"),
        ("predicate", "a.Both"),
        ("converter", "a.Both"),
        ("header_converter", "a.Both"),
    ]


def test_a_plugin_is_found_by_each_of_its_names() -> None:
    assert find_plugin([SINK, SOURCE], "Source") is find_plugin([SINK, SOURCE], "b.Source") is SOURCE
    with pytest.raises(UnknownPluginError, match=r"^Unknown plugin no\.such\.$"):
        find_plugin([SINK, SOURCE], "no.such")


@pytest.mark.parametrize(
    "version_range", ["4.3.1", "", "latest", "[4.3.1,4.3.1]", "[4.3,)", "(4.3,5)", "(,4.3.1]", "[,]", "4.3.1.0"]
)
def test_a_version_in_the_range_is_accepted(version_range: str) -> None:
    assert version_error(SOURCE, version_range) is None


@pytest.mark.parametrize("version_range", ["9.9", "4.3", "[4.4,)", "(4.3.1,)", "(,4.3.1)", "[1,4)"])
def test_a_version_outside_the_range_is_an_error_with_the_available_version(version_range: str) -> None:
    with pytest.raises(
        PluginVersionError, match=r"b\.Source not found that matches the version range .*: \[4\.3\.1\]$"
    ):
        find_plugin([SOURCE], "Source", version_range)


def test_a_version_without_brackets_is_a_range_of_one_version() -> None:
    assert version_error(SOURCE, "9") == (
        "Plugin b.Source not found that matches the version range [9,9], available versions: [4.3.1]"
    )
    assert "[undefined]" in (version_error(SINK, "1") or "")
    assert "Invalid version range" in (version_error(SOURCE, "[1,2") or "")


@pytest.mark.parametrize(
    "version_range", ["9" * 5_000, f"[{'1' * 5_000},2]", f"[1,{'2' * 5_000}]"], ids=["one", "least", "greatest"]
)
def test_a_version_of_thousands_of_digits_is_invalid(version_range: str) -> None:
    assert (version_error(SOURCE, version_range) or "").startswith("Invalid version range")
