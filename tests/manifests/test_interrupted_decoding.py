"""What a signal handler raises while bytes are decoded is not taken for a fault of the bytes."""

import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgpack
import pytest

from pyspark_checkpointer.consumers.journal import yaml_format
from pyspark_checkpointer.errors import InvalidStateError, MalformedError
from pyspark_checkpointer.manifests import msgpack_extensions, zones
from pyspark_checkpointer.manifests.keyed_records import decode, encode
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack

KEY = (Decimal(1), "x")
STORED = encode({KEY: pack(1)})
JOURNAL = b"update_time: 2024-01-02T03:04:05Z\nevent_logs:\n- name: a\n  record_number: 1\n"

USES: dict[str, Callable[[], Any]] = {
    "unpack": lambda: unpack(pack([KEY])),
    "decode": lambda: decode("name", *STORED, 1),
}


class StopError(Exception):
    """A user's own."""


@pytest.fixture(params=[TimeoutError, StopError, ConnectionResetError, KeyboardInterrupt])
def raised(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise request.param("of the handler")

    before = signal.signal(signal.SIGUSR1, handle)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_a_handler_raises_within_a_value_passes(
    use: Callable[[], Any], raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = msgpack_extensions.UNPACKERS[msgpack_extensions.DECIMAL]

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return before(*given)

    monkeypatch.setitem(msgpack_extensions.UNPACKERS, msgpack_extensions.DECIMAL, interrupted)
    with pytest.raises(raised, match="of the handler"):
        use()
    monkeypatch.undo()
    use()


def test_what_a_handler_raises_while_a_zone_is_read_passes(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(datetime(2024, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")))
    monkeypatch.setattr(zones, "_KNOWN", {})
    monkeypatch.setattr(zones, "ZoneInfo", lambda name: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(raised, match="of the handler"):
        unpack(packed)


def test_what_a_handler_raises_within_a_journal_passes(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_format, "_load", lambda data: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(raised, match="of the handler"):
        yaml_format.decode("journal", JOURNAL)


@pytest.mark.parametrize("name", ["Europe", "posix", "x" * 300, "a/" * 100 + "b", "\0", "", "/etc/passwd", "No/Where"])
def test_a_zone_that_is_no_file_is_refused(name: str) -> None:
    packed = msgpack.packb(
        msgpack.ExtType(msgpack_extensions.DATETIME, msgpack.packb(["2024-01-01T00:00:00", 0, f"zone:{name}"]))
    )
    expected: type[Exception] = MalformedError
    try:
        ZoneInfo(name)
    except ZoneInfoNotFoundError:  # another database may have it
        expected = InvalidStateError
    except (ValueError, OSError):
        pass
    assert expected is MalformedError or name not in ("\0", "/etc/passwd")
    with pytest.raises(expected):
        unpack(packed)
