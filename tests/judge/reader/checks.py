"""Refuse what is not as it has to be: fields of JSON objects, and the errors of this reader."""

import contextlib
import datetime as dt
import re

import pyarrow as pa
import zstandard

MAX = 2**63 - 1


class Refused(Exception):  # noqa: N818
    """The store, or an object of it, is not what the specification allows."""


class Missing(Exception):  # noqa: N818
    """An object that is named is not there."""


def need(ok, what):
    if not ok:
        raise Refused(what)


@contextlib.contextmanager
def about(name):
    try:
        yield
    except Refused as e:
        raise Refused(f"{name}: {e}") from e
    except (ValueError, ArithmeticError, RecursionError, pa.ArrowException, OSError, zstandard.ZstdError) as e:
        raise Refused(f"{name}: {type(e).__name__}: {e}") from e


def get(o, name, check, absent=False):
    if name not in o:
        need(absent, f"no field {name}")
        return None
    with about(name):
        return check(o[name])


def anything(v):
    return v


def is_a(kind, what):
    def check(v):
        need(type(v) is kind, f"{v!r:.80} is no {what}")
        return v

    return check


obj, array, text = is_a(dict, "object"), is_a(list, "list"), is_a(str, "text")


def some(v):
    need(text(v) != "", "no characters")
    return v


def integer(low=0, high=MAX):
    def check(v):
        need(type(v) is int and low <= v <= high, f"{v!r:.80} is no integer from {low} to {high}")
        return v

    return check


size = integer()


def or_null(check):
    return lambda v: None if v is None else check(v)


def matches(pattern, what):
    def check(v):
        need(type(v) is str and re.fullmatch(pattern, v, re.S), f"{v!r:.80} is no {what}")
        return v

    return check


digest = matches("[0-9a-f]{64}", "digest")
ID = "(?!0000000000)[0-9]{10}-[0-9a-f]{8}"
ident = matches(ID, "checkpoint id")


def time(v):
    matches(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", "time")(v)
    return dt.datetime.strptime(v, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC)


def sequence(i):
    return int(i[:10])
