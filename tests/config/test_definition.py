import pytest

from coterie.config.definition import Definition, Key, Type, at_least, between, mistyped, one_of


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
def test_a_value_of_its_type_is_taken(type_: Type, value: str) -> None:
    assert mistyped(type_, value) is None


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
def test_a_value_of_another_type_is_told(type_: Type, value: str) -> None:
    assert mistyped(type_, value) is not None


def test_checks_see_the_trimmed_value() -> None:
    definition = Definition((Key(name="codec", type=Type.STRING, documentation="", check=one_of(("gzip",))),))
    assert definition.errors({"codec": " gzip "}) == {}
    assert definition.errors({"codec": "rar"}) == {
        "codec": ["Invalid value rar for configuration codec: String must be one of: gzip"]
    }


def test_a_range_has_both_its_ends() -> None:
    assert [between(1, 3)(value) for value in ("1", "3", "0", "4")] == [
        None,
        None,
        "Value must be at least 1",
        "Value must be no more than 3",
    ]
    assert at_least(0)("0.5") is None
