"""Java's own examples (the documentation of `Properties.load`) and the syntax of worker files."""

import pytest

from coterie.config import properties
from coterie.nouns.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a=b", {"a": "b"}, id="equals sign"),
        pytest.param("a:b", {"a": "b"}, id="colon"),
        pytest.param("a b c", {"a": "b c"}, id="a blank separates key and value, and the value keeps its blanks"),
        pytest.param("  a = b  ", {"a": "b  "}, id="blanks around the separator are dropped, trailing ones stay"),
        pytest.param("Truth = Beauty\n\tTruth:Beauty\nTruth  :Beauty", {"Truth": "Beauty"}, id="three separators"),
        pytest.param("a==b", {"a": "=b"}, id="only the first separator counts"),
        pytest.param("a", {"a": ""}, id="a key alone"),
        pytest.param("a=", {"a": ""}, id="an empty value"),
        pytest.param("=b", {"": "b"}, id="an empty key"),
        pytest.param("# one\n! two\n\n   # three\na=1", {"a": "1"}, id="comments and blank lines"),
        pytest.param("a=1 # not a comment", {"a": "1 # not a comment"}, id="no comment after a value"),
        pytest.param("a=1\na=2", {"a": "2"}, id="the last value counts"),
        pytest.param("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}, id="continuation drops the indentation"),
        pytest.param("a=1\\\n\nb=2", {"a": "1", "b": "2"}, id="continued by an empty line"),
        pytest.param("a=1\\\n# 2", {"a": "1# 2"}, id="no comment inside a continuation"),
        pytest.param("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}, id="two backslashes are one, and no continuation"),
        pytest.param("# c\\\na=1", {"a": "1"}, id="comments do not continue"),
        pytest.param("a=1\\", {"a": "1"}, id="a backslash at the very end"),
        pytest.param("a\\ b\\=c = d", {"a b=c": "d"}, id="escapes in a key"),
        pytest.param("a=\\t\\n\\r\\f|\\q\\\\", {"a": "\t\n\r\f|q\\"}, id="escapes in a value"),
        pytest.param("a=\\u00e9\\u20AC", {"a": "é€"}, id="unicode escapes"),
        pytest.param("a=\\ud83d\\ude00", {"a": "😀"}, id="two escapes encode one character"),
        pytest.param("a=\\ud83d", {"a": "\ufffd"}, id="half of a surrogate pair is replaced"),
        pytest.param("k\\ud800=v", {"k\ufffd": "v"}, id="half of a surrogate pair in a key is replaced"),
        pytest.param("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}, id="every end of line"),
        pytest.param("listeners=http://127.0.0.1:8083", {"listeners": "http://127.0.0.1:8083"}, id="a URL"),
    ],
)
def test_a_file_is_parsed_as_by_java(text: str, expected: dict[str, str]) -> None:
    assert properties.parse_properties(text) == expected


@pytest.mark.parametrize("value", ["\\u12", "\\uzzzz", "\\u+123"])
def test_an_error_for_a_broken_unicode_escape_names_the_line(value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        properties.parse_properties(f"a=1\nb={value}\n")
    assert list(raised.value.errors) == ["line 2"]


def test_a_line_number_counts_physical_lines() -> None:
    with pytest.raises(ConfigError) as raised:
        properties.parse_properties("# comment\r\na=1\\\n  2\r\rb=\\u12\n")
    assert list(raised.value.errors) == ["line 5"]
