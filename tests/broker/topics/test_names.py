import pytest

from coterie.broker.topics.names import colliding_name, topic_name_error


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "x" * 250])
def test_an_invalid_topic_name_gets_an_error(name: str) -> None:
    assert topic_name_error(name) is not None


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "x" * 249])
def test_every_other_topic_name_is_valid(name: str) -> None:
    assert topic_name_error(name) is None


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert colliding_name("a.b", ["c", "a_b"]) == "a_b"
    assert colliding_name("a.b", ["a.b", "a-b", "ab"]) is None
    assert colliding_name("ab", ["a.b"]) is None
