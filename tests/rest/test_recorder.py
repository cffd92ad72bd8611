"""The recorder: what it records from a worker is what another worker of the same kind responds."""

from collections.abc import Sequence
from pathlib import Path

from tests.rest.deviations import deviation_of, is_as_expected
from tests.rest.recorded_calls import RECORDINGS, VECTORS, RecordedCall, read_recording
from tests.rest.recorded_runtime import RECORDED_DATA, RecordedRuntime
from tests.rest.served import ServedCluster
from tools.record_rest_calls import NewRecording, record

RECORDING = RECORDINGS[0]


async def recorded(calls: Sequence[RecordedCall]) -> NewRecording:
    async with ServedCluster() as cluster:
        worker = await cluster.serve(runtime=RecordedRuntime(RECORDED_DATA[RECORDING]))
        return await record(worker, calls, is_as_expected=is_as_expected)


async def test_a_new_recording_of_a_worker_is_repeatable_and_differs_from_connects_by_deviations(
    tmp_path: Path,
) -> None:
    new = await recorded(read_recording(RECORDING))
    assert [str(call) for call, _ in new.different if deviation_of(call) is None] == []
    new.write(VECTORS / RECORDING, tmp_path / "new.json")

    again = await recorded(read_recording("new.json", tmp_path))
    assert len(again.responses) == len(new.responses)
    assert [str(call) for call, _ in again.different] == []
