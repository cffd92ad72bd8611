"""Hostile bytes by the million: recorded frames and frames of every API and version, damaged and decoded.

    python -m tests.wire.fuzzing --frames 1000000 --seed 1

Any bytes that a peer may send are decoded or refused with a `WireError`; another exception, a decode of more than a
second, or the end of the process is a finding. The decoding runs in a child process with a memory limit: kio's parser
does not raise when an allocation fails, it aborts the process. The current frame is in a file that outlives the child.
"""

import argparse
import json
import mmap
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from crc32c import crc32c

from coterie.broker.apis.table import APIS
from coterie.nouns.errors import WireError
from coterie.wire.batch_filter import rebuild_with_records, split_records
from coterie.wire.batches import (
    NewRecord,
    check_produced_batch,
    decode_uncompressed_records_without_control,
    encode_batch,
)
from coterie.wire.compression import ZSTD, compress_gzip, decompress
from coterie.wire.connect_bytes import decode_version_and_assignment, decode_version_and_metadata
from coterie.wire.frames import RequestHeader, decode_request, decode_response, encode_request, encode_response_frame
from coterie.wire.primitives import Writer
from coterie.wire.schemas import CONNECT_GROUP_APIS, request_schema, response_schema
from tests.wire.samples import sample

VECTORS = Path(__file__).parent / "vectors" / "connect-wire.json"
SAMPLES_EACH = 3
SPARE_MEMORY = 512 * 1024 * 1024
"""Address space in addition to that of the process at its start."""
SLOW_S = 1.0

Target = Callable[[bytes], object]


class Corpus:
    """Frames to damage, by their decoder."""

    def __init__(self, rng: random.Random) -> None:
        recorded = json.loads(VECTORS.read_text())
        self.requests = [
            bytes.fromhex(one["hex"])
            for name, frames in recorded["raw_frames"].items()
            if name.endswith("req")
            for one in frames
        ]
        self.responses: list[tuple[RequestHeader, bytes]] = []
        served = {(key, version) for key, api in APIS.items() for version in api.versions}
        for key, version in sorted(served | {(key, 0) for key in CONNECT_GROUP_APIS}):
            for _ in range(SAMPLES_EACH):
                header, frame = encode_request(
                    sample(request_schema(key, version), rng), correlation_id=7, client_id="fuzz"
                )
                self.requests.append(frame)
                response = sample(response_schema(key, version), rng)
                self.responses.append((header, encode_response_frame(header, response)))
        self.embedded = [bytes.fromhex(one["hex"]) for one in recorded["metadata"] + recorded["assignments"]]
        self.batches = [*_batches(rng)]


def _batches(rng: random.Random) -> Iterator[bytes]:
    for count in (1, 2, 10):
        records = [
            NewRecord(key=rng.choice((None, b"k")), value=rng.choice((None, rng.randbytes(30))), headers=[("h", b"v")])
            for _ in range(count)
        ]
        plain = encode_batch(records, timestamp_ms=1_700_000_000_000)
        yield plain
        yield with_codec(plain, 1, compress_gzip(plain[61:]))
        for codec in (2, 3, 4):
            yield with_codec(plain, codec, rng.randbytes(40))
    yield batch_of((2**63 - 1, 0, b"k"))
    yield batch_of((-(2**63), 0, b"k"), base_timestamp_ms=-1)
    yield batch_of((0, 2**40, b"k"))
    yield batch_of((0, -1, b"k"))


def batch_of(*records: tuple[int, int, bytes], base_timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """A batch with a valid header and any records (timestamp delta, offset delta, key)."""
    body = Writer()
    for timestamp_delta, offset_delta, key in records:
        record = Writer()
        record.int8(0)
        record.varint(timestamp_delta)
        record.varint(offset_delta)
        record.varint_bytes(key)
        record.varint_bytes(b"v")
        record.varint(0)
        body.varint_bytes(record.getvalue())
    plain = encode_batch([NewRecord(key=None, value=None)] * len(records), timestamp_ms=base_timestamp_ms)
    return _with_valid_crc(plain[:61] + body.getvalue())


def with_codec(batch: bytes, codec: int, packed: bytes) -> bytes:
    head = bytearray(batch[:61])
    head[22] |= codec
    return _with_valid_crc(bytes(head) + packed)


def _with_valid_crc(batch: bytes) -> bytes:
    """``batch`` with the right length and CRC, so that the damage is found later."""
    if len(batch) < 61:
        return batch
    length = (len(batch) - 12).to_bytes(4)
    return batch[:8] + length + batch[12:17] + crc32c(batch[21:]).to_bytes(4) + batch[21:]


# -- damage -----------------------------------------------------------------------------------------------------------

_NASTY = [
    bytes.fromhex(text)
    for text in (
        "ffffffff", "7fffffff", "80000000", "0000ffff", "7fff", "ffff", "8000", "ffffffff0f", "ffffffff07", "ffff7f",
        "808080808001", "ffffffffffffffff7f", "00", "01", "ff", "7fffffffffffffff", "8000000000000000", "feffffff0f",
    )
]  # fmt: skip


def damaged(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """``data`` after one to six kinds of damage."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(8):
            case 0 if found:
                found[at % len(found)] ^= 1 << rng.randrange(8)
            case 1 if found:
                found[at % len(found)] = rng.randrange(256)
            case 2:
                nasty = rng.choice(_NASTY)
                found[at : at + len(nasty)] = nasty
            case 3:
                found[at:at] = rng.choice(_NASTY)
            case 4:
                del found[at : at + rng.choice((1, 2, 4, 8, 100))]
            case 5:
                found[at:at] = found[at : at + rng.choice((1, 4, 16, 64))] * rng.choice((1, 2, 50))
            case 6:
                del found[at:]
            case _:
                other = rng.choice(others)
                found[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(found)


def frames(corpus: Corpus, rng: random.Random) -> Iterator[tuple[str, bytes, Target]]:
    """An endless sequence of damaged frames: kind, bytes, decoder."""
    while True:
        kind = rng.randrange(100)
        if kind < 70:
            frame = damaged(rng.choice(corpus.requests), rng, corpus.requests)
            yield "request", frame, decode_request
        elif kind < 85:
            header, response = rng.choice(corpus.responses)
            frame = damaged(response, rng, [response])
            yield "response", frame, partial(decode_response, header=header)
        elif kind < 95:
            frame = damaged(rng.choice(corpus.batches), rng, corpus.batches)
            yield "batch", _with_valid_crc(frame) if rng.random() < 0.8 else frame, _read_batch
        else:
            yield "embedded", damaged(rng.choice(corpus.embedded), rng, corpus.embedded), _read_embedded


def _read_batch(data: bytes) -> None:
    """Decode a batch as Produce, as a reader of our logs, and as a compaction does."""
    head = check_produced_batch(data)
    if not head.is_compressed:
        decode_uncompressed_records_without_control(data)
    rebuild_with_records(data, head, split_records(data, head))


def _read_embedded(data: bytes) -> None:
    for decode in (decode_version_and_metadata, decode_version_and_assignment):
        try:
            decode(data)
        except WireError:
            continue


# -- the run ----------------------------------------------------------------------------------------------------------


def run(count: int, seed: int, in_hand: mmap.mmap | None = None) -> dict[str, object]:
    """Decode ``count`` damaged frames; returns counts and the findings."""
    rng = random.Random(seed)
    corpus = Corpus(rng)
    _limit_memory()
    seen: Counter[str] = Counter()
    findings: list[str] = []
    slowest_s = 0.0
    started_s = time.perf_counter()
    for number, (kind, frame, decode) in zip(range(count), frames(corpus, rng), strict=False):
        if in_hand is not None and len(frame) + 4 <= len(in_hand):
            in_hand[: len(frame) + 4] = len(frame).to_bytes(4) + frame
        begun_s = time.perf_counter()
        try:
            decode(frame)
            seen[f"{kind} read"] += 1
        except WireError:
            seen[f"{kind} refused"] += 1
        except Exception:  # noqa: BLE001 - any other exception is a finding
            findings.append(f"{number} {kind} {frame.hex()}\n{traceback.format_exc(limit=-4)}")
            if len(findings) == 20:
                break
        took_s = time.perf_counter() - begun_s
        slowest_s = max(slowest_s, took_s)
        if took_s > SLOW_S:
            findings.append(f"{number} {kind} took {took_s:.1f} s: {frame.hex()}")
    return {
        "frames": count,
        "seed": seed,
        "seconds": round(time.perf_counter() - started_s, 1),
        "slowest_ms": round(slowest_s * 1000, 1),
        "rss_max_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seen": dict(sorted(seen.items())),
        "findings": findings,
    }


def _limit_memory() -> None:
    # pyarrow reserves a GB at its first decompression and uses little of it: let this happen before the limit.
    decompress(ZSTD, b"", size_max=1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_in_subprocess(count: int, seed: int) -> dict[str, object]:
    """`run` in a child process, whose abnormal end is one more finding."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1024 * 1024)
        command = [sys.executable, "-m", "tests.wire.fuzzing", "--frames", str(count), "--seed", str(seed)]
        done = subprocess.run([*command, "--in-hand", file.name], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            result: dict[str, object] = json.loads(done.stdout)
            return result
        data = Path(file.name).read_bytes()
        frame = data[4 : 4 + int.from_bytes(data[:4])]
        return {"findings": [f"the process ended ({done.returncode}) of {frame.hex()}\n{done.stderr[-2000:]}"]}


def main() -> None:
    options = argparse.ArgumentParser(description="Decode damaged frames; prints one JSON line, exits 1 on a finding.")
    options.add_argument("--frames", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--in-hand", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.in_hand:
        with Path(arguments.in_hand).open("r+b") as file, mmap.mmap(file.fileno(), 0) as in_hand:
            sys.stdout.write(json.dumps(run(arguments.frames, arguments.seed, in_hand)))
        return
    result = run_in_subprocess(arguments.frames, arguments.seed)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(1 if result["findings"] else 0)


if __name__ == "__main__":
    main()
