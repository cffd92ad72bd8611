import pytest

from coterie.broker.topics.names import collision, name_error


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "x" * 250])
def test_a_name_that_no_topic_can_have_is_told(name: str) -> None:
    assert name_error(name) is not None


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249])
def test_any_other_name_is_good(name: str) -> None:
    assert name_error(name) is None


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert collision("a.b", ["c", "a_b"]) == "a_b"
    assert collision("a.b", ["a.b", "a-b", "ab"]) is None
    assert collision("ab", ["a.b"]) is None
