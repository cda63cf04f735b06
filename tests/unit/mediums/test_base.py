"""The registry of schemes, and the copying that all mediums share."""

from __future__ import annotations

import os

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import BadAddress, ConfigurationError, NotBytes
from entrepot.mediums import ShmMedium, as_bytes, attach, checksum_of, register, schemes
from entrepot.mediums.base import SLOT_ALIGNMENT, Medium, padded
from entrepot.mediums.buffers import COPY_CHUNK_NBYTES, copy_with_checksum


def test_a_medium_without_its_methods_cannot_be_made() -> None:
    class Half(Medium):
        scheme = "half"
        in_place = False

    with pytest.raises(TypeError, match="abstract"):
        Half("half:x", 1, 1, owner=True)  # type: ignore[abstract]


def test_an_unknown_scheme_names_the_known_ones() -> None:
    assert "shm" in schemes()
    with pytest.raises(BadAddress, match="shm:"):
        attach("carrier-pigeon:7")
    with pytest.raises(BadAddress, match="shm:"):
        attach("psm_4f2a9c")


def test_a_long_address_is_not_repeated_at_length() -> None:
    with pytest.raises(BadAddress) as raised:
        attach("x" * 100_000)
    assert len(str(raised.value)) < 500
    with pytest.raises(BadAddress) as raised:
        attach("shm:" + "x" * 100_000)
    assert len(str(raised.value)) < 500


def test_a_supplier_may_take_only_some_schemes() -> None:
    with ShmMedium.create(8, 1) as medium:
        attach(medium.address, allowed={"shm", "tcp"}).close()
        with pytest.raises(BadAddress, match=r"takes only file, tcp"):
            attach(medium.address, allowed={"tcp", "file"})


def test_a_scheme_belongs_to_one_class() -> None:
    class Other(ShmMedium):
        pass

    register("shm", ShmMedium)
    with pytest.raises(ConfigurationError, match="ShmMedium already"):
        register("shm", Other)
    for scheme in ("", "a:b", "a b", "\u00e9"):
        with pytest.raises(ConfigurationError):
            register(scheme, Other)


@given(st.integers(1, 2**70))
def test_padding_is_the_next_multiple(nbytes: int) -> None:
    assert padded(nbytes) % SLOT_ALIGNMENT == 0
    assert 0 <= padded(nbytes) - nbytes < SLOT_ALIGNMENT


@given(
    st.binary(max_size=64),
    st.sampled_from([0, 1, COPY_CHUNK_NBYTES - 1, COPY_CHUNK_NBYTES, 3 * COPY_CHUNK_NBYTES]),
)
def test_a_copy_in_chunks_is_a_copy(tail: bytes, head_nbytes: int) -> None:
    data = bytes(head_nbytes) + tail
    target = bytearray(os.urandom(len(data)))
    assert copy_with_checksum(memoryview(target), memoryview(data)) == checksum_of(data)
    assert target == data


def test_checksums_are_known_values() -> None:
    # From the reference implementation: XXH3_64bits of nothing and of "a", seed 0.
    assert checksum_of(b"") == 0x2D06800538D394C2
    assert checksum_of(b"a") == 0xE6C632B61E964E1F
    assert checksum_of(memoryview(b"ab")[1:]) == xxhash.xxh3_64_intdigest(b"b")


def test_bytes_of_many_dimensions_and_of_none() -> None:
    square = memoryview(bytes(range(12))).cast("B", (3, 4))
    assert as_bytes(square).tobytes() == bytes(range(12))
    assert as_bytes(memoryview(b"").cast("i")).nbytes == 0
    with pytest.raises(NotBytes, match="C-contiguous"):
        as_bytes(memoryview(bytes(8))[::-1])
    for odd in (np.array([object()]), np.array([(1, "a")], dtype=[("count", "i4"), ("what", "O")])):
        with pytest.raises(NotBytes, match="addresses of Python objects"):
            as_bytes(odd)  # type: ignore[arg-type]
    record = np.array([(1, 2)], dtype=[("O", "i4"), ("n", "i4")])
    assert as_bytes(record.data).tobytes() == record.tobytes()
    with pytest.raises(NotBytes, match="str"):
        as_bytes("text")  # type: ignore[arg-type]
