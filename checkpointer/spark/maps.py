"""A job's maps outside of its batches: what is written there would reach no checkpoint, so it is refused."""

from collections.abc import Iterator
from typing import Any, Never

from checkpointer.codecs.values import pack, unpack
from checkpointer.errors import InvalidStateError
from checkpointer.keyed import KeyedState


class RestingMap(KeyedState):
    """A map between two batches, or after the last one: it can be read, and not changed.

    A map changes its class and not its content, so that the handles that a callback keeps follow it. Values are handed
    out as copies: a change of one would be a change of the map.
    """

    def __getitem__(self, key: Any) -> Any:
        return unpack(pack(super().__getitem__(key)))

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse_write()

    def __delitem__(self, key: Any) -> None:
        _refuse_write()

    def update(self, other: Any = (), /, **more: Any) -> None:
        _refuse_write()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        _refuse_write()

    def pop(self, key: Any, default: Any = None) -> Any:
        _refuse_write()

    def popitem(self) -> tuple[Any, Any]:
        _refuse_write()

    def clear(self) -> None:
        _refuse_write()


class EndedMap(RestingMap):
    """A map of a run that has ended: it may hold what was never committed, and another run has its own."""

    def __getitem__(self, key: Any) -> Any:
        _refuse_read()

    def __contains__(self, key: object) -> bool:
        _refuse_read()

    def __len__(self) -> int:
        _refuse_read()

    def __iter__(self) -> Iterator[Any]:
        _refuse_read()

    def to_dict(self) -> dict[Any, Any]:
        _refuse_read()

    def _packed(self) -> list[dict[Any, bytes]]:
        _refuse_read()

    def _capture(self, *_: Any) -> Never:
        _refuse_read()

    def __repr__(self) -> str:
        return "KeyedState(of a run that has ended)"


def wake(state: KeyedState) -> None:
    """Let a batch change its map."""
    state.__class__ = KeyedState


def rest(state: KeyedState) -> None:
    """Refuse changes until the next batch."""
    state.__class__ = RestingMap


def end(state: KeyedState) -> None:
    """Refuse everything from now on."""
    state.__class__ = EndedMap


def _refuse_write() -> Never:
    raise InvalidStateError(
        "this map was changed outside of a batch, where no checkpoint would hold the change: change it while the "
        "callback runs, with what state.map(name) returns there"
    )


def _refuse_read() -> Never:
    raise InvalidStateError(
        "this map is of a run that has ended, or of a batch that failed: its changes may never have been committed; "
        "take state.map(name) in the callback, or Checkpointer(root).restore().keyed(name) elsewhere"
    )
