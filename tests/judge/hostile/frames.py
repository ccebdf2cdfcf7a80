"""Change the bytes around what an object holds: a zstd frame, or the digest of the pointer."""

from hashlib import sha256 as _sha256
from random import Random

import zstandard


def sha256(data: bytes) -> str:
    return _sha256(data).hexdigest()


def pointer_ends(body: bytes) -> dict[str, bytes]:
    """Pointers of which the last field is not what it has to be, or just is; `body` is all before it."""
    digest = sha256(body).encode()
    mark = b',"digest":"'
    first = b'{"digest":"' + digest + b'",' + body[1:]
    return {
        "upper": body + mark + digest.upper() + b'"}',
        "behind": body + mark + digest + b'"}\n',
        "blank": body + mark + digest + b'" }',
        "a field behind": body + mark + digest + b'","x":1}',
        "first": first + b"}",
        "twice": first + mark + sha256(first).encode() + b'"}',
        "another": body + mark + sha256(body + b" ").encode() + b'"}',
        "short": body + mark + digest[:-1] + b'"}',
        "in a text": (t := body + b',"x":",\\"digest\\":\\""') + mark + sha256(t).encode() + b'"}',
        "a BOM": (t := b"\xef\xbb\xbf" + body) + mark + sha256(t).encode() + b'"}',
        "long": (t := body + b',"x":"' + b"x" * (1 << 20) + b'"') + mark + sha256(t).encode() + b'"}',
        "just not long": (t := body + b',"x":"' + b"x" * ((1 << 20) - len(body) - 84) + b'"')
        + mark
        + sha256(t).encode()
        + b'"}',
        "empty": b"",
        "missing": body + b"}",
    }


def changed_frames(raw: bytes, random: Random) -> dict[str, bytes]:
    """Frames around these bytes, good and bad."""
    compress = zstandard.ZstdCompressor
    good = compress().compress(raw)
    plain = compress(write_content_size=False)
    block = (len(raw) << 3 | 1).to_bytes(3, "little") + raw
    return {
        "checksum": compress(write_checksum=True).compress(raw),
        "another checksum": (checked := compress(write_checksum=True).compress(raw))[:-1] + bytes([checked[-1] ^ 1]),
        "no content size": plain.compress(raw),
        "level 19": compress(level=19).compress(raw),
        "an empty frame behind": good + compress().compress(b""),
        "an empty frame before": compress().compress(b"") + good,
        "skippable before": bytes.fromhex("502a4d1803000000616263") + good,
        "skippable behind": good + bytes.fromhex("502a4d1803000000616263"),
        "a byte behind": good + b"\0",
        "cut": good[:-1],
        "nothing": b"",
        "not compressed": raw,
        "a window of 16 MiB": b"\x28\xb5\x2f\xfd\x00\x70" + block,
        "a window of 8 MiB": b"\x28\xb5\x2f\xfd\x00\x68" + block,
        "a dictionary 0": b"\x28\xb5\x2f\xfd\x01\x68\x00" + block,
        "a dictionary 1": b"\x28\xb5\x2f\xfd\x01\x68\x01" + block,
        "a reserved bit": b"\x28\xb5\x2f\xfd\x08\x68" + block,
        "an unused bit": b"\x28\xb5\x2f\xfd\x10\x68" + block,
        "another content size": b"\x28\xb5\x2f\xfd\xa0" + (len(raw) + 1).to_bytes(4, "little") + block,
        "a long content size": b"\x28\xb5\x2f\xfd\xe0" + len(raw).to_bytes(8, "little") + block,
        "an empty block": b"\x28\xb5\x2f\xfd\x00\x68" + b"\0\0\0" + block,
        "a reserved block": b"\x28\xb5\x2f\xfd\x00\x68" + b"\x07\0\0",
        "a flipped bit": flipped(good, random),
    }


def unzstd(data: bytes, size: int = 1 << 24) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size) if data else b""


def flipped(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data)) if data else 0
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :] if data else b"\0"
