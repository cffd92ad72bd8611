"""Plays the transcripts of scenarios and compares them with the recorded ones."""

import os
from pathlib import Path

from coterie.lab.scenario.transcript import parse_transcript, render_transcript, run_transcript


def check_recorded(path: Path) -> None:
    """Assert that the played transcript equals the one in ``path``. With ``SCENARIOS=rewrite``, write it to ``path``
    instead. A transcript may play others of its folder first."""
    text = path.read_text()
    assert render_transcript(parse_transcript(text)) == text, "the script must be written as it is parsed"
    played = render_transcript(run_transcript(parse_transcript(text), lambda name: (path.parent / name).read_text()))
    if os.environ.get("SCENARIOS") == "rewrite":
        path.write_text(played)
    else:
        assert played == text
