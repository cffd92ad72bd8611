"""All messages of a herder: they may be traced, and every chore ends with an event."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import get_args, get_type_hints

import pytest

from coterie.engine import log
from coterie.herder import messages, requests, seams, session_keys
from coterie.herder.messages import Chore, ChoreResult

SECRETS = re.compile(r"Mapping\[str, |bytes")
"""Types that may hold a config, an error about its values, or a key."""
NAMES = {"trace", "message", "refusal", "settings_error"}
"""Names of fields that may quote a config."""
PUBLIC = {"NewTopicRecord.key", "TopicRecord.key"}


REQUESTS = [
    importlib.import_module(module.name)
    for module in pkgutil.iter_modules(requests.__path__, prefix=f"{requests.__name__}.")
]


def secret_fields(module: ModuleType) -> Iterator[tuple[str, "dataclasses.Field[object]"]]:
    for kind in vars(module).values():
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.__name__:
            hints = get_type_hints(kind)
            for field in dataclasses.fields(kind):
                name = f"{kind.__name__}.{field.name}"
                if name not in PUBLIC and (field.name in NAMES or SECRETS.search(str(hints[field.name]))):
                    yield name, field


@pytest.mark.parametrize(
    "modules",
    [[messages], REQUESTS, [seams], [session_keys], [log]],
    ids=lambda modules: modules[0].__name__,
)
def test_the_repr_of_messages_contains_no_config_and_no_key(modules: list[ModuleType]) -> None:
    fields = {name: field for module in modules for name, field in secret_fields(module)}
    assert fields
    assert [name for name, field in fields.items() if field.repr] == []


def test_every_chore_has_events_that_end_it_and_every_such_event_belongs_to_a_chore() -> None:
    results = {kind.__name__ for kind in get_args(ChoreResult)}
    named = {kind: set(re.findall(r"\w+", (kind.__doc__ or "").partition("→")[2])) for kind in get_args(Chore)}
    assert {kind.__name__: names for kind, names in named.items() if not names & results} == {}
    assert set().union(*named.values()) & results == results
