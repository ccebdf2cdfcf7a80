"""Keep one zone object for each name of the time zone database.

Python compares two times of one zone object by their clocks, and two times of different zone objects by the moment. A
time in a repeated or a skipped hour is never equal to a time of another zone object, even where both zones have the
same name: `ZoneInfo.clear_cache()` and `ZoneInfo.no_cache()` make such objects. Only the name of a zone is stored, so
two of these zones would become one when they are read. Therefore keys get one zone object before they are compared.
"""

from datetime import datetime, time, timezone
from operator import is_
from typing import Any
from zoneinfo import ZoneInfo

_KNOWN: dict[str, ZoneInfo] = {}
"""The zone objects in use, by name, held for good.

The cache of `ZoneInfo` forgets unused zones, and can be cleared.
"""

HOLDERS = frozenset({datetime, tuple, frozenset})
"""Types of keys that may be, or hold, a time in a zone."""

_GROUPS = frozenset({tuple, frozenset})


def find_zone(name: str) -> ZoneInfo:
    """Return the zone of a name.

    Raises what `ZoneInfo` raises, and `ValueError` if its file cannot be read.
    """
    zone = _KNOWN.get(name)
    if zone is not None:
        return zone
    try:
        return known(ZoneInfo(name))
    except OSError as error:
        # An error of the file system names a file. One that a signal handler raises meanwhile does not.
        if error.filename is None:
            raise
        raise ValueError(f"a zone that cannot be read: {error}") from None


def is_unnamed(zone: ZoneInfo) -> bool:
    """Return whether a zone cannot be found by its name.

    Such a zone was read from a file that the caller opened.
    """
    try:
        zone.__reduce__()
    except Exception as error:  # a PicklingError, told by its name, since the format does not import pickle
        if type(error).__name__ != "PicklingError":
            raise  # a signal handler raised it
        return True
    return False


def known(zone: ZoneInfo) -> ZoneInfo:
    """Return the one object for the name of a zone.

    Returns the zone itself if it cannot be found by a name.
    """
    found = _KNOWN.get(zone.key)
    # Identity first: `is_unnamed` is the slower question, and nearly all times have the known zone already.
    if found is zone or is_unnamed(zone):
        return zone
    # `setdefault` is one step, so two threads that bring a new name agree on one object.
    return found or _KNOWN.setdefault(zone.key, zone)


def normalise(key: Any) -> Any:
    """Return a key with its times in the zone objects that are kept here.

    Returns the same object if they are already.
    """
    kind = type(key)
    if kind is datetime:
        zone = key.tzinfo
        if type(zone) is not ZoneInfo or (one := known(zone)) is zone:
            return key
        return key.replace(tzinfo=one)
    if kind is tuple or kind is frozenset:
        if HOLDERS.isdisjoint(map(type, key)):
            return key
        members = [normalise(member) for member in key]
        if all(map(is_, members, key)):
            return key
        # A set of which two members would become one stays as it is, and is refused when it is packed.
        made = kind(members)
        return made if len(made) == len(key) else key
    return key


def would_merge(members: Any) -> bool:
    """Return whether some members of a set, or keys of a dict, become one.

    They become one when they are stored and read.
    """
    if HOLDERS.isdisjoint(map(type, members)):
        return False
    return len(set(map(normalise, members))) < len(members)


def has_known_zones(key: Any) -> bool:
    """Return whether the zones of all times in a normalised key can be stored.

    They are found again by their names or offsets.
    """
    for member in key if type(key) in _GROUPS else (key,):
        kind = type(member)
        if kind is datetime:
            zone = member.tzinfo
            if zone is None or type(zone) is timezone:
                continue
            if type(zone) is not ZoneInfo or _KNOWN.get(zone.key) is not zone:
                return False
        # A time of day with a zone may be equal to one without, and is not stored.
        elif (kind is time and member.tzinfo is not None) or (kind in _GROUPS and not has_known_zones(member)):
            return False
    return True
