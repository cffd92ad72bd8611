"""Java's `.properties` format, read as Java reads it: the language of worker files."""

from collections.abc import Iterator

from coterie.nouns.errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Keys and values of a properties file; of a key that stands twice, the last one counts, as in Java.

    A logical line is `key=value`, `key:value` or `key value`; `#` and `!` open comments; a backslash at the end of a
    line joins the next one without its indentation; `\\t \\n \\r \\f \\uXXXX` are escapes, and any other escaped
    character stands for itself.

    :raises ConfigError: for a `\\u` without four hexadecimal digits behind it; names the line.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
            found[_unescaped(key)] = _unescaped(value)
        except ValueError as error:
            raise ConfigError({f"line {number}": [str(error)]}) from None
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that mean something, continuations joined, each with the number of its first line (from 1)."""
    gathered, first = "", 0
    # Java ends lines at \n, \r and \r\n only; str.splitlines knows more.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, physical in enumerate(lines, start=1):
        line = physical.lstrip(_BLANK)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        if _ends_open(line) and number < len(lines):
            gathered += line[:-1]
            continue
        yield first, gathered + (line[:-1] if _ends_open(line) else line)
        gathered, first = "", 0


def _ends_open(line: str) -> bool:
    """Whether the line ends in an odd number of backslashes, and so goes on in the next one."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Key and value, still escaped; the first `=`, `:` or blank that is not escaped parts them."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANK:
        at += 2 if line[at] == "\\" else 1
    value = line[at:].lstrip(_BLANK)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_BLANK)
    return line[:at], value


def _unescaped(text: str) -> str:
    parts = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            parts.append(text[at])
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        if letter != "u":
            parts.append(_ESCAPES.get(letter, letter))
            at += 2
            continue
        digits = text[at + 2 : at + 6]
        if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise ValueError(f"\\u needs four hexadecimal digits behind it, not {digits!r}")
        parts.append(chr(int(digits, 16)))
        at += 6
    # Two \u escapes may spell one character beyond the basic plane, as UTF-16 does.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
