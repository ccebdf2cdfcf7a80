"""Change one thing in the entries of an artifact of a map."""

from random import Random

import msgpack

from tests.judge import reader
from tests.judge.hostile.frames import flipped
from tests.judge.hostile.value_pool import KEYS, POOL, _ext

Pairs = list[tuple[list[bytes], list[bytes]]]


def taken_apart(data: bytes) -> Pairs:
    """The keys and values of each pair of arrays, packed."""
    found, at = [], 0

    def items(at: int) -> tuple[list[bytes], int]:
        head = data[at]
        if head & 0xF0 == 0x90:
            count, at = head & 15, at + 1
        else:
            width = {0xDC: 2, 0xDD: 4}[head]
            count, at = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
        out = []
        for _ in range(count):
            _, end = reader.value(data, at, 1, 0)
            out.append(data[at:end])
            at = end
        return out, at

    while at < len(data):
        keys, at = items(at)
        values, at = items(at)
        found.append((keys, values))
    return found


def packed(items: list[bytes], random: Random | None = None) -> bytes:
    header = msgpack.Packer().pack_array_header(len(items))
    if random is not None:
        header = random.choice([b"\xdc" + len(items).to_bytes(2, "big"), b"\xdd" + len(items).to_bytes(4, "big")])
    return bytes(header) + b"".join(items)


RECORD_CHANGES = (
    *["key"] * 3,
    *["two keys"] * 3,
    *["value"] * 4,
    *("twice", "nil", "no bin", "header", "split", "order", "key without value", "behind", "bin form", "empty pair"),
    *("flipped", "flipped", "flipped value", "flipped value", "flipped key"),
)


def change_records(pairs: Pairs, random: Random) -> tuple[str, bytes]:
    """What was changed in the entries of an artifact, and its bytes then."""
    keys = [key for some, _ in pairs for key in some]
    values = [value for _, some in pairs for value in some]
    at = random.randrange(len(keys)) if keys else 0
    new = random.choice(POOL)
    how = random.choice(RECORD_CHANGES)
    if not keys:
        keys, values = [b"\xa1k"], [b"\xc0"]
    a_bin = msgpack.packb
    if how == "key":
        keys[at] = new
        return f"key {new.hex()[:60]}", packed(keys) + packed(values)
    if how == "two keys":
        other, new = random.choices(KEYS, k=2)
        keys += [other, new]
        values += [a_bin(b"\x01"), a_bin(b"\x02")]
        return f"two keys {other.hex()[:60]} {new.hex()[:60]}", packed(keys) + packed(values)
    if how == "value":
        values[at] = a_bin(new)
        return f"value {new.hex()[:60]}", packed(keys) + packed(values)
    if how == "twice":
        keys.append(keys[at])
        values.append(values[at])
    elif how == "nil":
        values[at] = b"\xc0"
    elif how == "no bin":
        values[at] = random.choice([b"\x01", b"\xa1\x01", b"\xc2", b"\x90", _ext(10, b"\0" * 16), b"\xc4\x00"])
    elif how == "header":
        return how, packed(keys, random) + packed(values, random)
    elif how == "split":
        return how, b"".join(packed([key]) + packed([value]) for key, value in zip(keys, values, strict=True))
    elif how == "order":
        order = random.sample(range(len(keys)), len(keys))
        keys, values = [keys[n] for n in order], [values[n] for n in order]
    elif how == "key without value":
        values.pop()
    elif how == "behind":
        return how, packed(keys) + packed(values) + random.choice(
            [b"\0", b"\x90", b"\xc0", b"\x90\xc0", b"\x91\xc0\x90"]
        )
    elif how == "empty pair":
        return how, packed(keys) + packed(values) + b"\x90\xdc\0\0"
    elif how == "flipped":
        return how, flipped(packed(keys) + packed(values), random)
    elif how == "flipped key":
        keys[at] = flipped(keys[at], random)
        return f"{how} {keys[at].hex()[:60]}", packed(keys) + packed(values)
    elif how == "flipped value":
        value = flipped(new, random)
        values[at] = a_bin(value)
        return f"{how} {value.hex()[:60]}", packed(keys) + packed(values)
    else:
        keys = [b"\xdb" + len(key[1:]).to_bytes(4, "big") + key[1:] if key[0] & 0xE0 == 0xA0 else key for key in keys]
        values = [
            value if value == b"\xc0" else b"\xc6" + len(b := msgpack.unpackb(value)).to_bytes(4, "big") + b
            for value in values
        ]
    return how, packed(keys) + packed(values)
