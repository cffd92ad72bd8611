"""Every key of a connector's config has what a form needs to show it."""

from collections import Counter

import pytest

from coterie.config.definition import Definition, Width
from coterie.spark import transforms, validation
from coterie.spark.plugins import sink_definition, sources

TRANSFORMS = {
    "transforms": "kept,typed",
    "transforms.kept.type": "Filter",
    "transforms.typed.type": "Cast",
}


@pytest.fixture
def definition() -> Definition:
    """All keys of a connector with each kind of transform."""
    own = sources()["FileSource"].definition() + sink_definition({"sink.format": "json"})
    return validation.common() + own + transforms.definition(TRANSFORMS)


def test_every_key_has_documentation_a_group_a_width_and_a_label(definition: Definition) -> None:
    for key in definition.keys:
        assert key.documentation.endswith("."), key.name
        assert key.group, key.name
        assert key.display_name, key.name
        assert key.width is not Width.NONE, key.name


def test_names_are_unique_and_orders_count_each_groups_keys_from_0(definition: Definition) -> None:
    assert max(Counter(key.name for key in definition.keys).values()) == 1
    groups = {key.group for key in definition.keys}
    assert len(groups) == 6
    for group in groups:
        orders = [key.order for key in definition.keys if key.group == group]
        assert sorted(orders) == list(range(len(orders))), group


def test_dependents_are_keys_of_the_same_config(definition: Definition) -> None:
    dependents = {name for key in definition.keys for name in key.dependents}
    assert dependents == {"transforms.kept.condition", "transforms.typed.spec"}
    assert all(definition[name] for name in dependents)


def test_a_key_with_a_closed_list_of_values_recommends_them(definition: Definition) -> None:
    recommended = {key.name: key.recommended_values for key in definition.keys if key.recommended_values}
    assert set(recommended.pop("connector.class")) >= {"FileSource"}
    assert recommended == {
        "source.format": ("csv", "json"),
        "sink.format": ("json", "parquet"),
        "transforms.kept.type": ("Cast", "Filter"),
        "transforms.typed.type": ("Cast", "Filter"),
    }
