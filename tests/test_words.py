"""Words that no docstring, comment, message, page or name of ours contains, since they hide of whom or of what it is.

A sentence names the thing instead: the client, another worker, no member, all tasks. A name says what a value is: the
jobs that were sent, not what was told.
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
NEVER_IN_NAMES = ("said", "told", "tell", "tells", "say", "says", "hears", "heard", "mine", "fate", "wishes", "whom")
_NEVER = re.compile(rf"\b({'|'.join(NEVER)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_NEVER_IN_NAMES = re.compile(rf"\b({'|'.join(NEVER + NEVER_IN_NAMES)})\b")
_NAME = re.compile(r"[^\W\d]\w*")
"""Every name in Python's source, and every word of its comments and strings."""
_WORD_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
RECORDED = {'"farewell"'}
"""Strings of the simulator's records."""
FIXED_NAMES = {"HEARS", "TOLD_IS_DONE", "TOLD_IS_WRITTEN"}
"""Names of the simulator's records and invariants."""
QUOTE = re.compile(r"# (K415|K987|K848C|ARTICLE)\b")
"""The lines of a transcript that quote a document."""
PAGES = ("README.md", "docs/**/*.md", "examples/**/*.md", "tests/**/*.md", "src/**/*.toml", "tools/**/*.toml")
TRANSCRIPTS = ("tests/scenarios/**/*.txt", "tests/groups/connect/case_studies/*.txt")


def hits(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    for found in _NEVER.finditer(text):
        yield first_line + text.count("\n", 0, found.start()), found[0]


def hits_in_python(source: str) -> Iterator[tuple[int, str]]:
    """Hits in comments and strings, docstrings included; neither in names nor in code."""
    if not _NEVER.search(source):
        # Most files have none, and splitting all of them into tokens takes a minute.
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and token.string not in RECORDED:
            yield from hits(token.string, token.start[0])


def hits_in_names(source: str) -> Iterator[tuple[int, str]]:
    """Hits in the words of names."""
    suspects = {word for word in set(_NAME.findall(source)) - FIXED_NAMES if _has_such_a_word(word)}
    if not suspects:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in suspects:
            yield token.start[0], token.string


def _has_such_a_word(name: str) -> bool:
    return bool(_NEVER_IN_NAMES.search(" ".join(_WORD_OF_NAME.findall(name)).lower()))


def hits_in_transcript(text: str) -> Iterator[tuple[int, str]]:
    """Hits in the narration, which are comments; not in the documents that it quotes."""
    lines = text.splitlines()
    yield from hits("\n".join(line if line.startswith("#") and not QUOTE.match(line) else "" for line in lines), 1)


def files(*patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)} - {Path(__file__)})


def at(path: Path, found: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line}: {word}" for line, word in found]


@pytest.mark.parametrize("folder", ["src", "benchmarks", "tests", "tools", "examples"])
def test_no_docstring_comment_or_message_has_such_a_word(folder: str) -> None:
    paths = files(f"{folder}/**/*.py")
    assert paths
    assert [hit for path in paths for hit in at(path, hits_in_python(path.read_text()))] == []


@pytest.mark.parametrize("folder", ["src", "tests", "tools", "examples"])
def test_no_name_has_such_a_word(folder: str) -> None:
    paths = files(f"{folder}/**/*.py")
    assert paths
    assert [hit for path in paths for hit in at(path, hits_in_names(path.read_text()))] == []


@pytest.mark.parametrize("pattern", PAGES)
def test_no_page_has_such_a_word(pattern: str) -> None:
    pages = files(pattern)
    assert pages
    assert [hit for page in pages for hit in at(page, hits(page.read_text(), 1))] == []


@pytest.mark.parametrize("pattern", TRANSCRIPTS)
def test_no_narration_has_such_a_word(pattern: str) -> None:
    transcripts = files(pattern)
    assert transcripts
    assert [hit for path in transcripts for hit in at(path, hits_in_transcript(path.read_text()))] == []


def test_such_words_are_found() -> None:
    source = 'def whoever():\n    """Has\n    yet to be\n    Anew."""\n    x = 1  # nobody\n'
    assert list(hits_in_python(source)) == [(2, "Has\n    yet to"), (4, "Anew"), (5, "nobody")]


def test_such_names_are_found() -> None:
    source = "def split_anew(self_told, ToldJobs, TOLD, gone_for_good, foretold, HEARS): ...\n"
    names = [name for _, name in hits_in_names(source)]
    assert names == ["split_anew", "self_told", "ToldJobs", "TOLD", "gone_for_good"]


def test_such_words_of_a_narration_are_found() -> None:
    text = "# Nobody\n# K987 nobody\n> nobody joins\n# It comes\n"
    assert list(hits_in_transcript(text)) == [(1, "Nobody")]
