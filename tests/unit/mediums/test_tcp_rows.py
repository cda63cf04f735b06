"""Several writes in one, at the owner's end: each is judged by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from entrepot.mediums import attach
from entrepot.mediums.tcp_wire import (
    FENCED,
    MAGIC,
    MALFORMED,
    OK,
    OUT_OF_RANGE,
    READ,
    REQUEST,
    REST,
    ROW,
    ROW_NBYTES,
    ROW_WRITES,
    TOO_LARGE,
    WRITE,
)
from tests.unit.mediums.tcp_ends import (
    Clock,
    RawSupplier,
    lines_of,
    row_of,
    slot,
    tcp,
    token_of,
    until,
)

NOBODYS = "tcp:127.0.0.1:1/" + "f" * 32


def test_a_row_fills_its_slots() -> None:
    with tcp(64, 3) as medium:
        orders = [slot(medium, number) for number in range(3)]
        row = [
            (order, 64 * number, bytes([number + 1]) * 64) for number, order in enumerate(orders)
        ]
        with RawSupplier(medium).line(orders[0]) as raw:
            raw.row(row, lease=7)
            for _ in row:
                assert raw.answer() == (OK, b"")
            assert medium.read(0, 192) == b"".join(data for _, _, data in row)
            assert [medium.written(64 * number) for number in range(3)] == [7, 7, 7]


def test_one_that_is_refused_takes_no_other_with_it() -> None:
    """And the connection goes on."""
    with tcp(64, 4) as medium:
        orders = [slot(medium, number) for number in range(4)]
        taken_back = slot(medium, 2)
        medium.revoke(128)
        with RawSupplier(medium).line(orders[0]) as raw:
            raw.row(
                [
                    (orders[0], 0, b"a" * 64),
                    (NOBODYS, 0, b"-" * 64),
                    (orders[1], 64, b"-" * 65),
                    (taken_back, 128, b"-" * 1000),
                    (orders[3], 192, b"d" * 64),
                ]
            )
            statuses = [raw.answer()[0] for _ in range(5)]
            assert statuses == [OK, FENCED, TOO_LARGE, FENCED, OK]
            raw.row([(orders[1], 0, b"-")])
            assert raw.answer()[0] == OUT_OF_RANGE
            raw.write(orders[1], b"b" * 64, offset=64)
            assert raw.answer() == (OK, b"")
            assert medium.read(0, 256) == b"a" * 64 + b"b" * 64 + bytes(64) + b"d" * 64
            assert [medium.written(64 * number) for number in range(4)] == [1, 1, 0, 1]


def test_a_lease_that_was_overtaken_is_refused_in_a_row() -> None:
    with tcp(64, 2) as medium:
        orders = [slot(medium, number) for number in range(2)]
        with RawSupplier(medium).line(orders[0]) as raw, attach(orders[0]) as heir:
            raw.write(orders[0], b"old", lease=1)
            assert raw.answer()[0] == OK
            heir.write(0, b"new", 64, lease=2)
            raw.row([(orders[0], 0, b"late"), (orders[1], 64, b"fine")], lease=1)
            assert [raw.answer()[0], raw.answer()[0]] == [FENCED, OK]
            assert medium.read(0, 4) == b"new\0"
            assert medium.written(0) == 2


def test_a_row_may_come_in_pieces_and_with_others() -> None:
    with tcp(64, 3) as medium:
        orders = [slot(medium, number) for number in range(3)]
        sizes = (64, 0, 17)
        row = [
            (order, 64 * number, bytes([number + 1]) * size)
            for number, (order, size) in enumerate(zip(orders, sizes, strict=True))
        ]
        single = REQUEST.pack(MAGIC, WRITE, token_of(orders[1]), 1, 64, REST, 5) + b"alone"
        whole = row_of(row) + single + row_of(row[::-1])
        with RawSupplier(medium).line(orders[0]) as raw:
            for step in (1, 7, 56, 57, 224, 300, len(whole)):
                for number in range(3):
                    medium.write(64 * number, bytes(64))
                for start in range(0, len(whole), step):
                    raw.sock.sendall(whole[start : start + step])
                for _ in range(7):
                    assert raw.answer() == (OK, b"")
                assert medium.read(0, 64) == b"\1" * 64
                assert medium.read(64, 64) == b"alone" + bytes(59)
                assert medium.read(128, 64) == b"\3" * 17 + bytes(47)


def test_taking_back_one_ends_the_row_and_nothing_of_it_counts() -> None:
    """Whoever writes is stopped at once: what it had not finished it must write again."""
    with tcp(64, 3) as medium:
        orders = [slot(medium, number) for number in range(3)]
        row = row_of([(order, 64 * n, b"x" * 64) for n, order in enumerate(orders)])
        with RawSupplier(medium).line(orders[0]) as raw:
            raw.push(row[:-1])
            until(lambda: medium.read(128, 63) == b"x" * 63)
            medium.revoke(64)
            medium.write(64, b"!" * 64)
            raw.push(row[-1:])
            raw.wait_hung_up()
            assert [medium.written(64 * number) for number in range(3)] == [0, 0, 0]
            assert medium.read(64, 64) == b"!" * 64
        with RawSupplier(medium).line(orders[0]) as raw:
            raw.row([(order, 64 * n, b"y" * 64) for n, order in enumerate(orders)])
            assert [raw.answer()[0] for _ in range(3)] == [OK, FENCED, OK]
            assert medium.read(64, 64) == b"!" * 64


def test_two_rows_that_overtake_each_other_both_come_to_an_end() -> None:
    """Each of two suppliers holds what the other's next row takes over."""
    with tcp(64, 2, timeout_s=30.0) as medium:
        orders = [slot(medium, number) for number in range(2)]
        with RawSupplier(medium).line(orders[0]) as one, RawSupplier(medium).line(orders[1]) as two:
            one.push(row_of([(orders[0], 0, b"a" * 64)], lease=1)[:-1])
            until(lambda: medium.read(0, 63) == b"a" * 63)
            two.row([(orders[1], 64, b"b" * 64), (orders[0], 0, b"b" * 64)], lease=2)
            assert [two.answer()[0], two.answer()[0]] == [OK, OK]
            one.wait_hung_up()
            assert medium.read(0, 128) == b"b" * 128


def test_what_is_no_row_is_hung_up_on() -> None:
    with tcp(64, 2) as medium:
        orders = [slot(medium, number) for number in range(2)]
        both = [(orders[0], 0, b"x" * 64), (orders[1], 64, b"y" * 64)]
        for wrong in (
            row_of(both, nbytes=127),
            row_of(both, nbytes=129) + b"z",
            row_of(both, count=0),
            row_of(both, count=ROW_WRITES + 1),
            row_of(both, nbytes=ROW_NBYTES + 1),
            row_of(both, nbytes=2**64 - 1),
            row_of(both, count=2**64 - 1),
            row_of(both, op=READ),
            row_of([both[0], both[0]]),
        ):
            with RawSupplier(medium).line(orders[0]) as raw:
                raw.push(wrong)
                assert raw.answer()[0] == MALFORMED
                raw.wait_hung_up()
        assert medium.read(0, 128) == bytes(128)
        assert [medium.written(0), medium.written(64)] == [0, 0]


def test_a_row_that_stops_is_hung_up_on() -> None:
    with tcp(64, 2, timeout_s=0.3) as medium:
        orders = [slot(medium, number) for number in range(2)]
        row = row_of([(orders[0], 0, b"x" * 64), (orders[1], 64, b"y" * 64)])
        for part in (57, 100, 168, 200, len(row) - 1):
            clock = Clock(medium)
            with RawSupplier(medium).line(orders[0]) as raw:
                clock.go()
                raw.push(row[:part])
                raw.wait_hung_up()
        until(lambda: lines_of(medium) == 0)
        assert [medium.written(0), medium.written(64)] == [0, 0]


def test_a_connection_does_not_begin_with_a_row() -> None:
    with tcp(64, 1) as medium:
        order = slot(medium)
        with RawSupplier(medium).greeted() as raw:
            raw.push(REQUEST.pack(MAGIC, ROW, token_of(order), 0, 0, 1, 0))
            assert raw.answer()[0] == MALFORMED
            raw.wait_hung_up()


WRITES = st.tuples(
    st.integers(0, 3),  # whose token
    st.integers(0, 3),  # which slot
    st.integers(1, 3),  # lease
    st.integers(0, 80),  # bytes
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(WRITES, max_size=5, unique_by=lambda w: w[0]), max_size=4),
    gone=st.sets(st.integers(0, 3)),
)
def test_a_row_does_what_its_writes_would_do_one_by_one(
    rows: list[list[tuple[int, int, int, int]]], gone: set[int]
) -> None:
    with tcp(64, 5) as together, tcp(64, 5) as alone:
        seen = []
        for medium in (together, alone):
            orders = [slot(medium, number) for number in range(4)]
            for number in gone:
                medium.revoke(medium.offset(number))
            statuses = []
            with RawSupplier(medium).line(slot(medium, 4)) as raw:
                for number, row in enumerate(rows):
                    writes = [
                        (orders[whose], medium.offset(where), lease, bytes([number + 1]) * nbytes)
                        for whose, where, lease, nbytes in row
                    ]
                    if medium is together and len(writes) > 1:
                        heads = [
                            REQUEST.pack(MAGIC, WRITE, token_of(a), lease, o, REST, len(d))
                            for a, o, lease, d in writes
                        ]
                        body = b"".join(d for *_, d in writes)
                        head = REQUEST.pack(MAGIC, ROW, bytes(16), 0, 0, len(writes), len(body))
                        raw.push(head + b"".join(heads) + body)
                    else:
                        for address, offset, lease, data in writes:
                            raw.write(address, data, lease=lease, offset=offset)
                    statuses += [raw.answer() for _ in writes]
            written = [medium.written(medium.offset(number)) for number in range(4)]
            seen.append((statuses, written, medium.read(0, medium.nbytes)))
        assert seen[0] == seen[1]
