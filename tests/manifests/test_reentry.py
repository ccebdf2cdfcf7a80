"""Whoever interrupts a packer or a compressor may use one too: neither finds a byte of the other."""

import gc
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from types import FrameType
from typing import Any

import pytest

from pyspark_checkpointer.manifests import keyed_records, msgpack_checks, msgpack_extensions, msgpack_values
from pyspark_checkpointer.manifests.keyed_records import decode, encode
from pyspark_checkpointer.manifests.msgpack_values import pack, pack_checked, pack_some, unpack
from tests.instructions import each_instruction

VALUE = {"set": {1, 2, "x"}, "at": datetime(2024, 1, 2, tzinfo=UTC), "pair": (1, (2, Decimal("1.10"))), "big": 1 << 70}
OTHER = [{("other", n): frozenset({n, Decimal(n)})} for n in range(3)]
PACKED = {"value": pack(VALUE), "other": pack(OTHER)}
RECORDS: dict[Any, bytes | None] = {(n, "key"): pack([n] * 50) for n in range(300)}
STORED = encode(RECORDS)


MSGPACK = tuple(module.__file__ for module in (msgpack_checks, msgpack_extensions, msgpack_values))


def used() -> None:
    """Pack, unpack, encode and decode something."""
    assert pack(OTHER) == PACKED["other"]
    assert pack_some([OTHER, VALUE]) == [PACKED["other"], PACKED["value"]]
    assert unpack(PACKED["value"]) == VALUE
    assert encode({1: b"1", (2,): b"2" * 1000}) == ONE
    assert pack_checked([(1,)]) == pack([(1,)])


ONE = encode({1: b"1", (2,): b"2" * 1000})

USES: dict[str, Callable[[], bool]] = {
    "pack": lambda: pack(VALUE) == PACKED["value"],
    "pack some": lambda: pack_some([VALUE, OTHER, VALUE]) == [PACKED[n] for n in ("value", "other", "value")],
    "unpack": lambda: unpack(PACKED["value"]) == VALUE,
    "encode": lambda: encode(RECORDS) == STORED,
    "decode": lambda: decode("x", STORED[0], STORED[1], 300) == RECORDS,
}


@pytest.mark.parametrize("name", USES)
def test_a_codec_is_used_in_the_middle_of_each_of_its_uses(name: str) -> None:
    """At every instruction that Python runs."""
    times = 0

    def step() -> None:
        nonlocal times
        times += 1
        if times % 5 == 0:
            used()

    with each_instruction(lambda file: file in (*MSGPACK, keyed_records.__file__), step):
        right = USES[name]()
    assert right
    assert times > 100


def test_a_signal_handler_packs() -> None:
    handled = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal handled
        handled += 1
        used()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.003)
    try:
        while handled < 200:
            assert all(use() for use in USES.values())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_finalizer_and_a_callback_of_the_collector_pack() -> None:
    times = [0, 0]

    class Dying:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            times[0] += 1
            used()

    def collected(phase: str, info: object) -> None:
        times[1] += 1
        used()

    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(3, 2, 2)
    try:
        for _ in range(200):
            Dying()
            assert pack(VALUE) == PACKED["value"]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
    assert min(times) > 100


def test_greenlets_take_turns_within_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    greenlet = pytest.importorskip("greenlet")
    code, encode_decimal = msgpack_extensions.PACKERS[Decimal]
    names = list(USES)[:2]

    def encode_and_switch(value: Decimal, pack: msgpack_extensions.Pack) -> bytes:
        others = [one for one in running if not one.dead and one is not greenlet.getcurrent()]
        if others:
            others[0].switch()
        return encode_decimal(value, pack)

    monkeypatch.setitem(msgpack_extensions.PACKERS, Decimal, (code, encode_and_switch))
    right = []
    running = [greenlet.greenlet(lambda name=name: right.extend(USES[name]() for _ in range(50))) for name in names]
    while not all(one.dead for one in running):
        next(one for one in running if not one.dead).switch()
    assert right == [True] * 100


def test_a_thread_packs_within_the_value_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without greenlets: the other use begins and ends within an extension."""
    code, encode_decimal = msgpack_extensions.PACKERS[Decimal]
    main = threading.current_thread()

    def encode_beside(value: Decimal, pack: msgpack_extensions.Pack) -> bytes:
        if threading.current_thread() is main:
            used()
            other = threading.Thread(target=used)
            other.start()
            other.join()
        return encode_decimal(value, pack)

    expected = pack(VALUE)
    with monkeypatch.context() as patch:
        depth = [0]

        def once(value: Decimal, pack: msgpack_extensions.Pack) -> bytes:
            depth[0] += 1
            try:
                return encode_beside(value, pack) if depth[0] == 1 else encode_decimal(value, pack)
            finally:
                depth[0] -= 1

        patch.setitem(msgpack_extensions.PACKERS, Decimal, (code, once))
        assert pack(VALUE) == expected


def test_a_use_that_an_exception_ends_leaves_nothing_behind() -> None:
    """A packer that was left in the middle is not used again, and levels are counted anew."""
    for number in range(1, 400, 3):
        count = 0

        def step(number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt), each_instruction(lambda file: file in MSGPACK, step):
            pack(VALUE)
            unpack(PACKED["value"])
        assert pack(VALUE) == PACKED["value"]
        assert unpack(PACKED["value"]) == VALUE
    deep: Any = 1
    for _ in range(msgpack_values.MAX_DEPTH):
        deep = (deep,)
    assert unpack(pack(deep)) == deep
