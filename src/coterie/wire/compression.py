"""The codecs of record batches: decompresses gzip, snappy, lz4 and zstd under a size limit; compresses gzip only.

Python has gzip; the other codecs are pyarrow's. pyarrow is loaded when the first batch needs it, because loading takes
43 MB and 0.3 s.
"""

import zlib
from collections.abc import Iterator

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader

NO_COMPRESSION, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""The codecs' numbers in the lowest three bits of a batch's attributes."""

_DECOMPRESSED_BLOCK_SIZE = 256 * 1024
"""The number of decompressed bytes that are read at once."""

_GZIP_MEMBER_START = b"\x1f\x8b\x08"
"""The first bytes of a gzip member (RFC 1952): its magic number, and the number of the method deflate."""
_COMPRESSED_BLOCK_SIZE = 16 * 1024
"""The number of gzip's compressed bytes that are read at once."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
"""The first bytes of the snappy data of Java's clients. After them come two int32 versions, and then the blocks. Other
clients write one block without any header."""
_XERIAL_HEADER_SIZE = 16
"""The size in bytes of `_XERIAL_MAGIC` and the two versions."""


def decompress(codec: int, data: bytes | memoryview, *, size_max: int) -> bytes:
    """``data`` decompressed with the codec of this number.

    :raises WireError: when ``data`` is damaged, ``codec`` is unknown, or the result is longer than ``size_max`` bytes.
    """
    try:
        if codec == NO_COMPRESSION:
            decompressed = bytes(data)
        elif codec == GZIP:
            decompressed = _decompress_gzip_until_too_long(memoryview(data), size_max)
        elif codec == SNAPPY:
            decompressed = _decompress_snappy(bytes(data), size_max)
        elif codec in (LZ4, ZSTD):
            decompressed = _decompress_with_pyarrow_until_too_long("lz4" if codec == LZ4 else "zstd", data, size_max)
        else:
            raise WireError(f"no codec has the number {codec}")
    except (zlib.error, OSError, ValueError) as error:
        # pyarrow's errors are OSError and ValueError.
        raise WireError(f"compressed records are damaged: {error}") from error
    if len(decompressed) > size_max:
        raise WireError(f"the decompressed records have more than {size_max} bytes")
    return decompressed


def compress_gzip(data: bytes) -> bytes:
    """``data`` compressed with gzip."""
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


# -- helpers ----------------------------------------------------------------------------------------------------------


def _decompress_gzip_until_too_long(data: memoryview, size_max: int) -> bytes:
    """``data`` decompressed with gzip. If the result is longer than ``size_max`` bytes, only its first ``size_max`` + 1
    bytes: the caller checks the length.

    As in Java's GZIPInputStream, which Kafka uses: members that follow each other are one stream, and bytes after a
    member that are not the beginning of another one are ignored.

    :raises zlib.error: when a member is damaged.
    :raises WireError: when ``data`` ends inside of a member.
    """
    decompressed = bytearray()
    position = 0
    while not position or data[position : position + len(_GZIP_MEMBER_START)] == _GZIP_MEMBER_START:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            # In small blocks, because zlib copies the bytes after the end of a member: data may have many members.
            block = data[position : position + _COMPRESSED_BLOCK_SIZE]
            if not block:
                raise WireError("compressed records are damaged: they end inside of a gzip member")
            decompressed += member.decompress(block, size_max + 1 - len(decompressed))
            if len(decompressed) > size_max:
                return bytes(decompressed)
            position += len(block) - len(member.unused_data)
    return bytes(decompressed)


def _decompress_with_pyarrow_until_too_long(codec: str, data: bytes | memoryview, size_max: int) -> bytes:
    """``data`` decompressed with pyarrow's codec of the name ``codec``. If the result is longer than ``size_max``
    bytes, only the beginning of it, which is also longer than ``size_max``: the caller checks the length.

    :raises OSError: when ``data`` is damaged.
    """
    import pyarrow

    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec) as stream:
        # Read into a buffer of this function. pyarrow's own read allocates memory for the whole requested size before
        # it reads anything, and does not free that memory when it then fails.
        block = memoryview(bytearray(min(size_max + 1, _DECOMPRESSED_BLOCK_SIZE)))
        decompressed = bytearray()
        while len(decompressed) <= size_max and (size := stream.readinto(block)):
            decompressed += block[:size]
        return bytes(decompressed)


def _decompress_snappy(data: bytes, size_max: int) -> bytes:
    """``data`` decompressed with snappy.

    :raises WireError: when the result is longer than ``size_max`` bytes, or a block has no valid length.
    :raises OSError: when the content of a block is damaged.
    """
    import pyarrow

    blocks: list[bytes] = []
    remaining_bytes = size_max
    for block in _snappy_blocks(data):
        # A block begins with its decompressed size: check it before decompressing.
        size = Reader(block).uvarint()
        if size > remaining_bytes:
            raise WireError(f"the decompressed records have more than {size_max} bytes")
        remaining_bytes -= size
        blocks.append(pyarrow.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
    return b"".join(blocks)


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """The compressed blocks in ``data``: those after the header of Java's clients, or ``data`` itself without it.

    :raises WireError: when a block is longer than the bytes left, or the header is cut off.
    """
    if not data.startswith(_XERIAL_MAGIC):
        yield data
        return
    reader = Reader(data, _XERIAL_HEADER_SIZE)
    while reader.remaining:
        size = reader.int32()
        if not 0 <= size <= reader.remaining:
            raise WireError(f"a snappy block states a length of {size} bytes, but {reader.remaining} bytes are left")
        yield bytes(data[reader.position : reader.position + size])
        reader.raw(size)
