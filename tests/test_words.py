"""Words that no docstring, comment, message or page of ours contains, since they hide of whom or of what a sentence is.

A sentence names the thing instead: the client, another worker, no member, all tasks.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEVER = (
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "has yet to",
    "be it",
    "were it",
    "in its stead",
    "small hands",
    "for good",
    "anew",
    "farewell",
    "of itself",
    "in silence",
    "without a word",
)
_NEVER = re.compile(rf"\b({'|'.join(NEVER)})\b".replace(" ", r"\s+"), re.IGNORECASE)
RECORDED = {'"farewell"'}
"""Strings of the simulator's records."""


def hits(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    for found in _NEVER.finditer(text):
        yield first_line + text.count("\n", 0, found.start()), found[0]


def hits_in_python(source: str) -> Iterator[tuple[int, str]]:
    """Hits in comments and strings, docstrings included; neither in names nor in code."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and token.string not in RECORDED:
            yield from hits(token.string, token.start[0])


@pytest.mark.parametrize("folder", ["src", "benchmarks"])
def test_no_docstring_comment_or_message_has_such_a_word(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, word in hits_in_python(path.read_text())
    ]
    assert found == []


def test_no_page_has_such_a_word() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found = [
        f"{page.relative_to(ROOT)}:{line}: {word}" for page in sorted(pages) for line, word in hits(page.read_text(), 1)
    ]
    assert found == []


def test_such_words_are_found() -> None:
    source = 'def whoever():\n    """Has\n    yet to be\n    Anew."""\n    x = 1  # nobody\n'
    assert list(hits_in_python(source)) == [(2, "Has\n    yet to"), (4, "Anew"), (5, "nobody")]
