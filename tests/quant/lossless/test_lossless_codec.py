"""Lossless BF16 of one tensor: every bit comes back, no claim is believed."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.evals.errors import CheckpointError, UsageError
from equipoise.kernels import bf16_split
from equipoise.quant.lossless import (
    EncodedTensor,
    blocks,
    decode_exponents,
    decode_tensor,
    encode_exponents,
    encode_tensor,
    exponents,
)
from equipoise.quant.lossless.blocks import checksum, decode_block, encode_block
from equipoise.quant.lossless.entropy import entropy_bits
from equipoise.quant.lossless.exponents import CodecError, pack, unpack
from equipoise.quant.lossless.layout import BLOCK_ELEMENTS, INDEX_DTYPE, MAX_BLOCK_ELEMENTS, largest_bytes

ALL_PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def gaussian(shape, *, seed=0, row_spread=0.0):
    """BF16 bit patterns of Gaussian weights, rounded to nearest even; rows may differ in scale."""
    rng = np.random.default_rng(seed)
    scales = np.exp(row_spread * rng.standard_normal((shape[0],) + (1,) * (len(shape) - 1)))
    bits = (0.02 * scales * rng.standard_normal(shape)).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


ADVERSARIAL = {
    "all patterns": ALL_PATTERNS,
    "all patterns, shuffled": np.random.default_rng(0).permutation(np.tile(ALL_PATTERNS, 5)),
    "zeros": np.zeros(300_000, np.uint16),
    "negative zeros": np.full(5000, 0x8000, np.uint16),
    "one NaN with a payload": np.full(777, 0x7FA5, np.uint16),
    "negative NaN payloads": np.arange(0xFF81, 0x10000, dtype=np.uint16),
    "infinities": np.tile(np.array([0x7F80, 0xFF80], np.uint16), 999),
    "subnormals": np.tile(np.arange(1, 0x80, dtype=np.uint16), 99),
    "uniform noise": np.random.default_rng(1).integers(0, 1 << 16, 400_001, dtype=np.uint16),
    "extremes alternate": np.tile(np.array([0x0000, 0x7F7F], np.uint16), 70_000),
    # 16 exponents in turn: one of them is always an escape
    "sixteen exponents": (np.arange(200_000) % 16 + 100 << 7).astype(np.uint16),
    "a distance of 14 from the base": (np.arange(200_000) % 15 + 100 << 7).astype(np.uint16),
    "every second an escape": np.where(np.arange(9999) % 2, 0x3F80, np.arange(9999) * 37 % 0x8000).astype(
        np.uint16
    ),
    "one value": np.array([0x3F80], np.uint16),
    "two values": np.array([0xBF80, 0x0001], np.uint16),
    "odd count": gaussian((BLOCK_ELEMENTS + 1,)),
    "exactly one block": gaussian((BLOCK_ELEMENTS,)),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_every_bit_comes_back(name):
    values = ADVERSARIAL[name]
    for threads in (1, 3):
        encoded = encode_tensor(values, threads=threads)
        decoded = decode_tensor(encoded, threads=threads)
        assert decoded.dtype == np.uint16 and np.array_equal(decoded, values)
        assert encoded.nbytes <= largest_bytes(values.shape) < 2 * values.size * 1.001 + 1024


@given(
    st.integers(0, 3000).flatmap(
        lambda n: st.tuples(st.binary(min_size=2 * n, max_size=2 * n), st.integers(0, 2**16 - 1))
    )
)
def test_any_bytes_come_back(drawn):
    raw, mask = drawn
    values = np.frombuffer(raw, np.uint16) & np.uint16(mask)  # a mask makes some planes constant
    assert np.array_equal(decode_tensor(encode_tensor(values)), values)


@given(
    shape=st.lists(st.integers(0, 7), max_size=4).map(tuple), columns=st.sampled_from([1, 64, 65, 300, 4097])
)
def test_any_shape_comes_back(shape, columns):
    shape = (*shape, columns) if len(shape) % 2 else shape
    values = gaussian((int(np.prod(shape)) + 1,), row_spread=2)[:-1].reshape(shape)
    decoded = decode_tensor(encode_tensor(values))
    assert decoded.shape == shape and np.array_equal(decoded, values)


@given(data=st.data(), columns=st.sampled_from([0, 1, 2, 5, 64]))
def test_exponent_planes_come_back_and_never_grow(data, columns):
    count = data.draw(st.integers(0, 400)) * max(1, columns)
    low, high = sorted(data.draw(st.tuples(st.integers(0, 255), st.integers(0, 255))))
    seed = data.draw(st.integers(0, 2**32))
    plane = np.random.default_rng(seed).integers(low, high, count, dtype=np.uint8, endpoint=True)
    streams = encode_exponents(plane, columns=columns)
    assert streams.nbytes <= count
    assert np.array_equal(decode_exponents(streams, count, columns=columns), plane)


@pytest.mark.parametrize("name", ["all patterns", "odd count", "every second an escape"])
def test_numpy_and_the_compiled_routine_write_the_same_bytes_and_read_each_others(name, monkeypatch):
    values = ADVERSARIAL[name]
    compiled = bytes(encode_tensor(values).data)
    monkeypatch.setattr(blocks, "split", bf16_split.split_reference)
    for function in ("split", "join", "count_escapes"):
        monkeypatch.setattr(exponents, function, getattr(bf16_split, f"{function}_reference"))
    assert bytes(encode_tensor(values).data) == compiled
    assert np.array_equal(decode_tensor(EncodedTensor.from_bytes(compiled)), values)


def test_signs_and_mantissas_are_packed_only_where_they_are_not_noise():
    weights = gaussian((512, 1024))
    scales = weights & 0x7FFF  # all positive: the sign bit is known
    noise = encode_tensor(weights).layout.index["sign_mantissa"].sum()
    positive = encode_tensor(scales).layout.index["sign_mantissa"].sum()
    assert noise == weights.size
    assert positive == pytest.approx(weights.size * 7 / 8, rel=0.01)


def test_gaussian_weights_come_within_one_per_cent_of_the_limit():
    weights = gaussian((2048, 1024))
    limit = (entropy_bits(weights >> 7 & 0xFF) + 8) / 16
    assert limit == pytest.approx(0.659, abs=0.001)  # quantized Gaussian noise, whatever its scale
    ratio = encode_tensor(weights).nbytes / weights.nbytes
    assert limit < ratio < limit * 1.01


def test_rows_of_different_scale_cost_little_more_than_rows_of_one_scale():
    spread = gaussian((1024, 2048), row_spread=1.0)
    encoded = encode_tensor(spread)
    assert encoded.layout.columns == 2048
    assert encoded.nbytes / spread.nbytes < 0.67
    # Without a base a row this is out of reach: the exponents alone need more.
    assert (entropy_bits(spread >> 7 & 0xFF) + 8) / 16 > 0.69
    assert np.array_equal(decode_tensor(encoded), spread)


@pytest.mark.parametrize("shape", [(600, 300), (40, 7, 333), (3, BLOCK_ELEMENTS + 5), (500_000,), (9, 0, 3)])
@pytest.mark.parametrize("row_spread", [0.0, 2.0])
def test_rows_decode_as_a_slice_does(shape, row_spread):
    values = gaussian(shape, row_spread=row_spread)
    encoded = encode_tensor(values)
    last = shape[0]
    for rows in ((0, last), (0, 0), (last, last), (1, 2), (last // 3, last // 2 + 1), (last - 1, last)):
        got = decode_tensor(encoded, rows=rows, threads=2)
        assert np.array_equal(got, values[rows[0] : rows[1]]) and got.shape == values[slice(*rows)].shape


def test_rows_read_their_blocks_alone():
    values = gaussian((64, BLOCK_ELEMENTS // 8))  # 8 rows a block
    encoded = encode_tensor(values)
    data = bytearray(encoded.data)
    start, end = encoded.layout.starts[4:6]
    data[start:end] = bytes(end - start)  # rows 32 to 39 are gone
    damaged = EncodedTensor.from_bytes(bytes(data))
    assert np.array_equal(decode_tensor(damaged, rows=(0, 32)), values[:32])
    assert np.array_equal(decode_tensor(damaged, rows=(40, 64)), values[40:])
    with pytest.raises(CheckpointError, match="block 4 of 8"):
        decode_tensor(damaged, rows=(31, 33))


@pytest.mark.parametrize("rows", [(-1, 2), (3, 2), (0, 6)])
def test_rows_that_are_not_there_are_refused(rows):
    with pytest.raises(UsageError, match="no such rows"):
        decode_tensor(encode_tensor(gaussian((5, 8))), rows=rows)


def test_a_scalar_has_no_rows():
    scalar = np.array(0x3F80, np.uint16)
    assert decode_tensor(encode_tensor(scalar)) == scalar
    with pytest.raises(UsageError, match="no such rows"):
        decode_tensor(encode_tensor(scalar), rows=(0, 1))


def test_a_buffer_that_is_there_is_filled_and_one_that_does_not_fit_refused():
    values = gaussian((90, 100))
    encoded, out = encode_tensor(values), np.empty((40, 100), np.uint16)
    decode_tensor(encoded, rows=(50, 90), out=out)
    assert np.array_equal(out, values[50:])
    short, signed, strided = (
        np.empty((39, 100), np.uint16),
        out.view(np.int16),
        np.empty((100, 40), np.uint16).T,
    )
    for wrong in (short, signed, strided):
        with pytest.raises(UsageError, match="out must be"):
            decode_tensor(encoded, rows=(50, 90), out=wrong)


def test_other_dtypes_are_not_cast():
    with pytest.raises(UsageError, match="not float32"):
        encode_tensor(np.ones(4, np.float32))


def test_input_may_be_strided_or_read_only_and_is_left_as_it_was():
    values = gaussian((100, 100))
    values.flags.writeable = False
    for view in (values, values[::-3, 1::2], values.T):
        assert np.array_equal(decode_tensor(encode_tensor(view)), view)
    assert np.array_equal(values, gaussian((100, 100)))


def test_no_flipped_bit_changes_a_value_unnoticed():
    values = gaussian((3, 1000))
    data = bytes(encode_tensor(values).data)
    layout = EncodedTensor.from_bytes(data).layout
    rng = np.random.default_rng(5)
    found = 0
    positions = range(0, len(data), 3)
    for position in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(rng.integers(8))
        try:
            decoded = decode_tensor(EncodedTensor.from_bytes(bytes(damaged)))
        except CheckpointError:
            found += 1
        else:  # padding, and bits of a frame that mean nothing
            assert position >= layout.header_bytes
            assert np.array_equal(decoded, values)
    assert found >= len(positions) - 8


@pytest.mark.parametrize("keep", [0, 1, 19, 20, 27, 50, 60, -8, -1])
def test_truncated_bytes_are_refused(keep):
    data = bytes(encode_tensor(gaussian((100, 100))).data)
    with pytest.raises(CheckpointError, match="encoded tensor: "):
        EncodedTensor.from_bytes(data[:keep])


def forged(shape, index_rows, *, columns=0, block_elements=BLOCK_ELEMENTS, version=1, payload=b"", rank=None):
    """An encoded tensor whose checksum is right and whose claims are ours to choose."""
    index = np.array(index_rows, INDEX_DTYPE)
    head = struct.pack("<8sHBxII", b"EQ.BF16L", version, len(shape) if rank is None else rank, columns,
                       block_elements)  # fmt: skip
    head += struct.pack(f"<{len(shape)}Q", *shape) + index.tobytes()
    data = head + struct.pack("<Q", checksum(head)) + payload
    return data + bytes(-len(data) % 8)


HOSTILE = {
    "claims 2^60 bytes": (forged((1 << 59,), []), "claims 1,152,921,504,606,846,976 bytes"),
    "claims more than numbers hold": (forged((2**63,) * 4, []), "claims"),
    "a block longer than its values": (
        forged((100,), [(0, 0, 0, 201, 0)], payload=bytes(201)), "block 0 claims 201 bytes for 100 values",
    ),
    "a stream of 4 GB": (forged((100,), [(0, 2**32 - 1, 0, 0, 0)]), "block 0 claims 4,294,967,295 bytes"),
    "giant blocks": (forged((100,), [], block_elements=MAX_BLOCK_ELEMENTS + 1), "blocks of 1,048,577 values"),
    "blocks of nothing": (forged((100,), [], block_elements=0), "blocks of 0 values"),
    "rows that do not divide": (forged((100,), [(0, 0, 0, 0, 0)], columns=7), "rows of 7 values"),
    "rank 200": (forged((), [], rank=200), "rank of 200"),
    "another version": (forged((0,), [], version=2), "version 2 of the encoding"),
    "bytes that nothing describes": (forged((0,), [], payload=bytes(64)), "its index describes"),
    "not ours": (b"PK\x03\x04" * 20, "does not begin as an encoded tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_claims_that_the_bytes_do_not_bear_out_are_refused(name):
    data, message = HOSTILE[name]
    with pytest.raises(CheckpointError, match=message):
        EncodedTensor.from_bytes(data, source="model.safetensors: tensor w")


def test_a_frame_that_would_decode_to_more_than_its_block_is_refused_before_it_is_decoded():
    bomb = pack(np.zeros(1 << 24, np.uint8))
    assert len(bomb) < 4096
    with pytest.raises(CodecError, match="a zstd frame of 16,777,216 bytes where 4,096 are due"):
        unpack(bomb, 4096, "exponent pairs")


@pytest.mark.parametrize("cut", [slice(0, -1), slice(1, None), slice(0, 3)])
def test_damaged_frames_are_refused(cut):
    frame = pack(np.arange(4096, dtype=np.uint16).astype(np.uint8) // 64)
    with pytest.raises(CodecError, match="bases"):
        unpack(frame[cut], 4096, "bases")
    with pytest.raises(CodecError, match="bases"):
        unpack(frame + b"\0", 4096, "bases")


def test_streams_that_contradict_each_other_are_refused():
    plane = gaussian((1000,)) >> 7 & 0xFF
    streams = encode_exponents(plane.astype(np.uint8))
    assert streams.pairs
    for wrong in (replace(streams, bases=b"\1\2"), replace(streams, pairs=b""),
                  replace(streams, escapes=bytes(streams.escapes) + b"\1")):  # fmt: skip
        with pytest.raises(CodecError):
            decode_exponents(wrong, 1000)


def test_a_block_of_other_values_is_told_by_its_checksum():
    block = encode_block(gaussian((1000,)))
    other = encode_block(gaussian((1000,), seed=1))
    entry = replace(other.entry, checksum=block.entry.checksum)
    with pytest.raises(CodecError, match="checksum"):
        decode_block(b"".join(other.streams), entry, np.empty(1000, np.uint16))


def test_the_format_of_version_1_does_not_change():
    """Bytes written by the first release; regenerate only with a new version."""
    golden = Path(__file__).with_name("version_1.bin").read_bytes()
    values = np.concatenate([ALL_PATTERNS[::31], 0x3C80 + np.arange(2000) ** 2 % 0x300, np.zeros(5)]).astype(
        np.uint16
    )
    assert np.array_equal(decode_tensor(EncodedTensor.from_bytes(golden)), values)
