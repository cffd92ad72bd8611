import pytest

from coterie.config.definition import ConfigDef, ConfigKey, Secret, Type, at_least, between, one_of, type_error
from coterie.nouns.errors import ConfigError


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Type.INT, " 12 "),
        (Type.INT, "+2147483647"),
        (Type.INT, "-2147483648"),
        (Type.LONG, "9223372036854775807"),
        (Type.LONG, "0009223372036854775807"),
        (Type.SHORT, "-32768"),
        (Type.DOUBLE, "1e-1"),
        (Type.BOOLEAN, " TRUE "),
        (Type.STRING, ""),
    ],
)
def test_a_value_of_the_right_type_is_accepted(type_: Type, value: str) -> None:
    assert type_error(type_, value) is None


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Type.INT, ""),
        (Type.INT, "1.0"),
        (Type.INT, "1_000"),
        (Type.INT, "٣"),
        (Type.INT, "2147483648"),
        (Type.LONG, "-9223372036854775809"),
        (Type.LONG, "1" * 5_000),
        (Type.INT, "0" * 5_000),
        (Type.SHORT, "32768"),
        (Type.DOUBLE, "half"),
        (Type.BOOLEAN, "yes"),
    ],
)
def test_a_value_of_another_type_is_an_error(type_: Type, value: str) -> None:
    assert type_error(type_, value) is not None


def test_validators_get_the_trimmed_value() -> None:
    definition = ConfigDef((ConfigKey(name="codec", type=Type.STRING, documentation="", validator=one_of(("gzip",))),))
    assert definition.errors({"codec": " gzip "}) == {}
    assert definition.errors({"codec": "rar"}) == {
        "codec": ["Invalid value rar for configuration codec: String must be one of: gzip"]
    }


def test_a_range_includes_both_ends() -> None:
    assert [between(1, 3)(value) for value in ("1", "3", "0", "4")] == [
        None,
        None,
        "Value must be at least 1",
        "Value must be no more than 3",
    ]
    assert at_least(0)("0.5") is None


TYPED = ConfigDef(
    (
        ConfigKey(name="name", type=Type.STRING, documentation=""),
        ConfigKey(name="tasks", type=Type.INT, documentation="", default="1", validator=at_least(1)),
        ConfigKey(name="share", type=Type.DOUBLE, documentation="", is_optional=True),
        ConfigKey(name="header", type=Type.BOOLEAN, documentation="", default="false"),
        ConfigKey(name="columns", type=Type.LIST, documentation="", default=""),
        ConfigKey(
            name="password", type=Type.PASSWORD, documentation="", is_optional=True, validator=one_of(("tiger",))
        ),
        ConfigKey(
            name="url",
            type=Type.STRING,
            documentation="",
            is_optional=True,
            validator=one_of(("postgresql://h/d",)),
            is_value_hidden_in_errors=True,
        ),
    )
)


def test_values_and_defaults_are_converted_to_their_types() -> None:
    given = {"name": " c ", "tasks": " 4", "share": "0.5", "header": "TRUE", "columns": "a, b"}
    assert TYPED.required_value(given, "name", str) == "c"
    assert TYPED.required_value(given, "tasks", int) == 4
    assert TYPED.required_value(given, "share", float) == 0.5
    assert TYPED.required_value(given, "header", bool) is True
    assert TYPED.required_value(given, "columns", tuple) == ("a", "b")
    assert TYPED.required_value({}, "tasks", int) == 1
    assert TYPED.required_value({}, "header", bool) is False
    assert TYPED.required_value({}, "columns", tuple) == ()
    assert TYPED.optional_value({}, "share", float) is None


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        ({}, "name", 'Missing required configuration "name" which has no default value.'),
        ({"tasks": "0"}, "tasks", "Invalid value 0 for configuration tasks: Value must be at least 1"),
        ({"tasks": "x"}, "tasks", "Invalid value x for configuration tasks: Not a number of type INT"),
    ],
)
def test_an_error_for_a_missing_or_invalid_value_names_the_key(config: dict[str, str], name: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TYPED.required_value(config, name, object)
    assert raised.value.errors == {name: (message,)}


def test_a_password_is_shown_neither_in_the_value_nor_in_the_error() -> None:
    secret = TYPED.optional_value({"password": "tiger"}, "password", Secret)
    assert secret is not None
    assert secret.text == "tiger"
    assert (repr(secret), str(secret), f"{secret}") == ("[hidden]",) * 3
    for key, value in (("password", "lion"), ("url", "postgresql://u:lion@h/d")):
        (message,) = TYPED.errors({"name": "c", key: value})[key]
        assert f"Invalid value [hidden] for configuration {key}: " in message
        assert "lion" not in message
