"""The result of a validation: definitions, values and errors."""

import pytest

from coterie.config.definition import ConfigDef, ConfigKey, OneOfPluginClasses, Type, at_least
from coterie.config.infos import NULL_VALUE_ERROR, make_config_infos

DEFINITION = ConfigDef(
    (
        ConfigKey(name="b", type=Type.INT, documentation="", default="1", validator=at_least(1), group="Second"),
        ConfigKey(name="a", type=Type.PASSWORD, documentation="", is_optional=True, group="First"),
        ConfigKey(name="c", type=Type.LIST, documentation="", default="x, y", group="Second"),
        ConfigKey(name="d", type=Type.STRING, documentation="", is_optional=True),
    )
)


def test_groups_and_keys_have_the_order_of_the_definition() -> None:
    infos = make_config_infos("C", DEFINITION, {}, {})
    assert infos.groups == ("Second", "First")
    assert [(info.name, info.value) for info in infos.configs] == [
        ("b", "1"),
        ("a", None),
        ("c", "x,y"),
        ("d", None),
    ]
    assert (infos.error_count, infos.errors) == (0, {})


def test_a_key_without_a_definition_that_has_an_error_has_neither_a_definition_nor_a_value() -> None:
    infos = make_config_infos("C", DEFINITION, {"e": "secret"}, {"e": ["no such key"], "b": ["x", "y"]})
    assert infos.error_count == 3
    assert infos.errors == {"b": ["x", "y"], "e": ["no such key"]}
    unknown = infos.configs[-1]
    assert (unknown.name, unknown.key, unknown.value) == ("e", None, None)


def test_a_null_replaces_the_value_and_its_errors() -> None:
    infos = make_config_infos("C", DEFINITION, {}, {"d": ["Missing"]}).with_nulls_as_errors(["b", "d", "e"])
    null_number = "Invalid value null for configuration b: Value must be non-null"
    assert infos.errors == {"b": [null_number, NULL_VALUE_ERROR], "d": [NULL_VALUE_ERROR], "e": [NULL_VALUE_ERROR]}
    assert infos.configs[0].value is None


def test_no_repr_contains_a_value_or_an_error() -> None:
    infos = make_config_infos("C", DEFINITION, {"d": "value-1"}, {"d": ["Invalid value value-1"]})
    assert "value-1" not in repr(infos)


@pytest.mark.parametrize(
    ("type_", "text", "shown"),
    [
        (Type.BOOLEAN, " TRUE ", "true"),
        (Type.INT, "+07", "7"),
        (Type.INT, "x", None),
        (Type.LIST, " a , b", "a,b"),
        (Type.LIST, "", ""),
        (Type.PASSWORD, "secret", "[hidden]"),
        (Type.STRING, " a ", "a"),
        (Type.STRING, None, None),
    ],
)
def test_a_value_is_shown_as_connect_shows_it(type_: Type, text: str | None, shown: str | None) -> None:
    assert ConfigKey(name="k", type=type_, documentation="").shown_value(text) == shown


def test_the_name_of_no_class_is_shown_as_null() -> None:
    names = OneOfPluginClasses(("a.B",), interface_name="Converter", also_accepted_names=frozenset(("B",)))
    key = ConfigKey(name="k", type=Type.CLASS, documentation="", validator=names)
    assert [key.shown_value(text) for text in ("a.B", " B ", "C")] == ["a.B", "B", None]
    assert key.value_error("C") == "Invalid value C for configuration k: Class C could not be found."
    assert key.recommended_values == ("a.B",)
