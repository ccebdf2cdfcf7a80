"""One partition of a keyed state: packed bytes at rest, and the live objects that somebody may still change.

data     every key with its packed value, but for new keys that are fresh
live     values that were handed out or assigned, for as long as somebody else refers to them
seen     what rests in `data` for those of them that were packed before
fresh    those of them that were assigned since, and may be new. To look a key up in `data`, which is large and in
         nobody's cache, costs more than all else that is done about a change: it is done once, when it is packed
dirty    what changed since the last save, None where a key was deleted

Every key of `seen` and of `fresh` is live; so is every key whose value in `data` is not packed yet. A change takes a
key out of `seen`, is noted in `dirty`, made in `data`, and only then seen: whatever interrupts that, the value that
somebody holds is packed and compared once more, and what `dirty` says is looked up in `data`.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

from checkpointer.capture import PartitionChange
from checkpointer.codecs.fold import fold_start
from checkpointer.codecs.values import UnsupportedValueError, pack, pack_some
from checkpointer.references import unheld
from manifests.model import DELTA, SNAPSHOT, Chain

TOGETHER = 256
"""Values that are packed, and keys that are looked up, together: they are in the processor's cache the second time."""

_UNPACKED = b""
"""Rests in the place of a new key's value until that is packed for the first time."""


class Partition:
    __slots__ = (
        "_deltas",
        "_doubtful",
        "_least",
        "_limit",
        "_sharing",
        "chain",
        "data",
        "dirty",
        "fresh",
        "live",
        "seen",
    )

    def __init__(self, limit: int) -> None:
        """`limit` live objects at least are let be before those that nobody holds any more are put to rest."""
        self.data: dict[Any, bytes] = {}
        self.dirty: dict[Any, bytes | None] = {}
        self.live: dict[Any, Any] = {}
        self.seen: dict[Any, bytes] = {}
        self.fresh: dict[Any, None] = {}
        self._least = self._limit = limit
        self.chain: Chain = ()
        """What it was last saved in or restored from."""
        self._deltas: list[dict[Any, bytes | None]] = []
        """What the deltas of that chain hold."""
        self._sharing: set[PartitionChange] = set()
        self._doubtful = False
        """Whether a change was interrupted between `dirty` and `data`, which comes second: then `dirty` may say more
        than has changed, and something else."""

    def restore(self, chain: Chain, data: dict[Any, bytes], deltas: list[dict[Any, bytes | None]]) -> None:
        self.chain, self.data, self._deltas = chain, data, deltas

    # ---- changes ----------------------------------------------------------------------------------------------------

    def assign(self, values: dict[Any, Any]) -> None:
        """Set values that may be changed from outside for as long as somebody refers to them; `values` does no more."""
        self.live.update(values)
        self.fresh.update(dict.fromkeys(values))
        values.clear()
        if len(self.live) > self._limit:
            self._put_to_rest()

    def hand_out(self, key: Any, packed: bytes, value: Any) -> None:
        """What rests as `packed` may be changed from outside from now on."""
        self.seen[key] = packed
        self.live[key] = value
        if len(self.live) > self._limit:
            self._put_to_rest()

    def rest(self, key: Any, packed: bytes) -> None:
        """Set a value that nobody can change."""
        if self.data.get(key) != packed:
            data = self._writable()
            self.seen.pop(key, None)
            self._doubtful = True
            self.dirty[key] = packed
            data[key] = packed
            self._doubtful = False
        self._let_go([key] if key in self.live else [])

    def listed(self) -> dict[Any, bytes]:
        """`data` with every key that there is."""
        if self.fresh:
            data = self._writable()
            for key in self.fresh:
                data.setdefault(key, _UNPACKED)
            self.fresh = {}
        return self.data

    def delete(self, key: Any) -> None:
        """Raises `KeyError` where there is none."""
        if key not in self.listed():
            raise KeyError(key)
        data = self._writable()
        self.seen.pop(key, None)
        self._doubtful = True
        self.dirty[key] = None
        del data[key]
        self._doubtful = False
        self._let_go([key] if key in self.live else [])

    def clear(self) -> None:
        gone = dict.fromkeys(self.listed())
        self._resolve()
        self._doubtful = True
        self.dirty.update(gone)
        self.data, self._sharing = {}, set()
        self.live, self.seen = {}, {}
        self._doubtful = False

    def _writable(self) -> dict[Any, bytes]:
        """`data` to change, a copy where a capture still reads the old one."""
        self._resolve()
        if self._sharing:
            self.data, self._sharing = dict(self.data), set()
        return self.data

    def _resolve(self) -> None:
        """After a change that was interrupted: what is in `data` counts, of all that may have changed."""
        if self._doubtful:
            self.dirty = {key: self.data.get(key) for key in self.dirty}
            self._doubtful = False

    # ---- live objects ------------------------------------------------------------------------------------------------

    def pack_all(self) -> dict[Any, UnsupportedValueError]:
        """Take in what every live value has become, and let go of those that nobody else holds.

        Returns those that cannot be packed; where there are any, nothing is let go of.
        """
        refused = self._pack(self.live.items())
        if not refused:
            self.fresh = {}  # all of them are in `data` now
            self._let_go(unheld(self.live))
        return refused

    def _put_to_rest(self) -> None:
        """Let go of the live values that nobody else holds, unless they cannot be packed."""
        keys = unheld(self.live)
        refused = self._pack((key, self.live[key]) for key in keys)
        self._let_go([key for key in keys if key not in refused])
        self._limit = max(self._least, 2 * len(self.live))

    def _let_go(self, keys: list[Any]) -> None:
        """What they are is in `data` by now."""
        if len(keys) == len(self.live):
            self.live, self.seen, self.fresh = {}, {}, {}
            return
        for key in keys:
            self.fresh.pop(key, None)
            self.seen.pop(key, None)
            del self.live[key]
        if len(keys) > len(self.live):  # else who goes through them still passes the places of those that are gone
            self.live, self.seen, self.fresh = dict(self.live), dict(self.seen), dict(self.fresh)

    def _pack(self, values: Iterable[tuple[Any, Any]]) -> dict[Any, UnsupportedValueError]:
        """Take in what live values have become. Returns what could not be packed."""
        refused: dict[Any, UnsupportedValueError] = {}
        for packed in _packed(values, refused):
            changed = _other_than(self.seen, packed)
            if not changed:
                continue
            changed = _other_than(self.data, changed)
            if changed:
                data = self._writable()
                for key in self.seen.keys() & changed.keys():
                    del self.seen[key]
                self._doubtful = True
                self.dirty.update(changed)
                data.update(changed)
                self._doubtful = False
            self.seen.update(packed)
        return refused

    # ---- saving ------------------------------------------------------------------------------------------------------

    def capture(self, number: int, chain: Chain, max_chain: int) -> PartitionChange | None:
        """What has to be written on top of `chain`: a delta where it is the one it was last saved in, a snapshot, or
        nothing. Later changes do not reach what is returned; what changed is `dirty` still, until it is `taken`."""
        self._resolve()
        dirty = self.dirty
        known = bool(chain) and chain == self.chain
        if (known and not dirty) or not (chain or self.data):
            return None
        if known:
            sizes = [artifact.raw_size for artifact in chain[1:]]
            room = chain[0].raw_size // 2 - sum(sizes)
            size, values = 16 * len(dirty), iter(dirty.values())
            while size <= room and (some := list(islice(values, 1024))):  # no further than is needed to know
                size += sum(map(len, filter(None, some)))
            if size <= room:
                first = fold_start([*sizes, size], max_chain - 1)
                records = reduce(or_, [*self._deltas[first:], dirty])
                return PartitionChange(
                    number, DELTA, 1 + first, records, size + sum(sizes[first:]), dirty, self._unshare
                )
        sample = [len(value) for value in islice(self.data.values(), 2048)]
        size = len(self.data) * (16 + sum(sample) // max(len(sample), 1))
        change = PartitionChange(number, SNAPSHOT, 0, self.data, size, dirty, self._unshare)
        self._sharing.add(change)
        return change

    def taken(self, change: PartitionChange) -> None:
        """What changed is in a capture, which gives it back unless it is committed."""
        if self.dirty is change.dirty:
            self.dirty = {}

    def saved(self, change: PartitionChange, chain: Chain) -> None:
        """A capture was committed, in this chain."""
        self.chain = chain
        self._deltas = [*self._deltas[: change.keep - 1], change.records] if change.kind == DELTA else []

    def change_again(self, dirty: dict[Any, bytes | None]) -> None:
        """A capture was not committed: what changed before it is a change still."""
        self.dirty = dirty | self.dirty

    def _unshare(self, change: PartitionChange) -> None:
        self._sharing.discard(change)


def _other_than(known: dict[Any, bytes], packed: dict[Any, bytes]) -> dict[Any, bytes]:
    """What of `packed` is not known so."""
    if not known:
        return packed
    before = list(map(known.get, packed))
    if before == list(packed.values()):
        return {}
    return {key: now for (key, now), old in zip(packed.items(), before, strict=True) if now != old}


def _packed(values: Iterable[tuple[Any, Any]], refused: dict[Any, UnsupportedValueError]) -> Iterator[dict[Any, bytes]]:
    """Some keys with their values packed, until all are through; why one cannot be stored is added to `refused`."""
    left = iter(values)
    while some := dict(islice(left, TOGETHER)):
        keys = list(some)
        done = 0
        while rest := keys[done:]:
            try:
                packed = pack_some(list(some.values())[done:])
            except UnsupportedValueError:
                one_by_one = {}
                for key in rest:
                    try:
                        one_by_one[key] = pack(some[key])
                    except UnsupportedValueError as error:
                        refused[key] = error
                yield one_by_one
                break
            yield dict(zip(rest, packed, strict=False))
            done += len(packed)
