"""The codecs of record batches: gzip, snappy, lz4 and zstd, unpacked under a size limit; gzip alone is packed.

What does not come with Python comes with pyarrow, which is loaded when the first such batch is met: 43 MB and 0.3 s
that a broker without them never pays.
"""

import zlib
from collections.abc import Iterator

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""Codecs as the lowest three bits of a batch's attributes count them."""

_BLOCK_SIZE = 256 * 1024

_XERIAL = b"\x82SNAPPY\x00"
"""Java's clients cut snappy into blocks, behind this and two int32 of versions; others write one bare block."""
_XERIAL_HEAD_SIZE = 16


def unpacked(codec: int, data: bytes | memoryview, *, size_max: int) -> bytes:
    """What ``data`` holds.

    :raises WireError: when it is damaged, of no known codec, or holds more than ``size_max`` bytes.
    """
    try:
        if codec == NONE:
            plain = bytes(data)
        elif codec == GZIP:
            plain = zlib.decompressobj(wbits=31).decompress(data, size_max + 1)
        elif codec == SNAPPY:
            plain = _unpacked_snappy(bytes(data), size_max)
        elif codec in (LZ4, ZSTD):
            plain = _unpacked_stream("lz4" if codec == LZ4 else "zstd", data, size_max)
        else:
            raise WireError(f"no compression has the number {codec}")
    except (zlib.error, OSError, ValueError) as error:
        # pyarrow's errors are OSError and ValueError.
        raise WireError(f"compressed records are damaged: {error}") from error
    if len(plain) > size_max:
        raise WireError(f"compressed records hold more than {size_max} bytes")
    return plain


def packed_gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


# -- small hands ------------------------------------------------------------------------------------------------------


def _unpacked_stream(codec: str, data: bytes | memoryview, size_max: int) -> bytes:
    import pyarrow

    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec) as stream:
        # Into room of our own: pyarrow makes room for all that it is asked to read before it reads any of it, and
        # when it then fails, it does not give that back.
        block = memoryview(bytearray(min(size_max + 1, _BLOCK_SIZE)))
        plain = bytearray()
        while len(plain) <= size_max and (size := stream.readinto(block)):
            plain += block[:size]
        return bytes(plain)


def _unpacked_snappy(data: bytes, size_max: int) -> bytes:
    import pyarrow

    blocks: list[bytes] = []
    left = size_max
    for block in _snappy_blocks(data):
        # Before it trusts anything else a block tells its size.
        size = Reader(block).uvarint()
        if size > left:
            raise WireError(f"compressed records hold more than {size_max} bytes")
        left -= size
        blocks.append(pyarrow.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
    return b"".join(blocks)


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL):
        yield data
        return
    reader = Reader(data, _XERIAL_HEAD_SIZE)
    while reader.left:
        size = reader.int32()
        if not 0 <= size <= reader.left:
            raise WireError(f"a snappy block tells {size} bytes, {reader.left} are left")
        yield bytes(data[reader.at : reader.at + size])
        reader.raw(size)
