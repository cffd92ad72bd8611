"""Pending values against a model that knows the whole log."""

from hypothesis import example, given
from hypothesis import strategies as st

from coterie.groups.pending_writes import OpenTransactionWrites

KEYS, PRODUCERS = st.sampled_from("ab"), st.integers(1, 3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PRODUCERS, KEYS),
        st.tuples(st.just("override"), st.just(0), KEYS),
        st.tuples(st.sampled_from(["commit", "abort"]), PRODUCERS, st.just("")),
    ),
    max_size=20,
)


def value_of(log: list[tuple[str, int, str]], key: str) -> int | None:
    """The index of the last record of ``key`` that counts, as a reader of the whole log finds it."""
    for at in range(len(log) - 1, -1, -1):
        kind, producer, written = log[at]
        if written != key:
            continue
        end = next((kind for kind, ended, _ in log[at:] if ended == producer and kind in ("commit", "abort")), None)
        if kind == "override" or end == "commit":
            return at
    return None


@given(steps)
@example([("write", 1, "a"), ("write", 2, "a"), ("commit", 2, ""), ("commit", 1, "")])
def test_the_values_are_those_of_a_reader_of_the_whole_log(log: list[tuple[str, int, str]]) -> None:
    pending: OpenTransactionWrites[str, int] = OpenTransactionWrites()
    values: dict[str, int] = {}
    for at, (kind, producer, key) in enumerate(log):
        match kind:
            case "write":
                pending.write(producer, key, at)
            case "override":
                pending.drop_values_of_key(key)
                values[key] = at
            case _:
                values.update(pending.end_transaction(producer, is_commit=kind == "commit"))
    expected = {key: value_of(log, key) for key in "ab"}
    assert values == {key: at for key, at in expected.items() if at is not None}
    for producer in range(1, 4):
        pending.end_transaction(producer, is_commit=False)
    assert not pending
    assert "a" not in pending
