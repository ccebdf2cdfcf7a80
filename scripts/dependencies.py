"""Follow what a package needs, with some of its extras."""

from collections.abc import Callable, Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def follow(package: str, extras: Iterable[str], requires: Callable[[str], Iterable[str] | None]) -> dict[str, set[str]]:
    """Return the package and all that it needs here, each with what it needs directly.

    `requires` returns the requirements of a package, as its metadata have them. What it raises for a package that it
    does not know ends this: the package would be left out in silence.
    """
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(package, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found.setdefault(name, set())
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                other = canonicalize_name(needed.name)
                waiting += [(other, wanted) for wanted in ("", *needed.extras)]
                found[name] |= {other} - {name}
    return found
