"""Parse the argument KEY: a key of a map or a table, as `cat` and `diff` print it."""

import json
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn
from uuid import UUID

import click

from pyspark_checkpointer.cli.failures import Mistyped
from pyspark_checkpointer.manifests import zones


class KeyCommand(click.Command):
    """A command of which a key is an argument: click takes -5 for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line that may have negative numbers.

        If one of the arguments is a negative number, all arguments are moved behind the options.
        """
        end = args.index("--") if "--" in args else len(args)
        before, after = args[:end], args[end + 1 :]
        takes_value = {name for p in self.get_params(ctx) if getattr(p, "is_flag", None) is False for name in p.opts}
        options: list[str] = []
        arguments: list[str] = []
        for last, word in zip(["", *before], before, strict=False):
            is_argument = last not in takes_value and (not word.startswith("-") or word == "-" or _is_number(word))
            (arguments if is_argument else options).append(word)
        if any(map(_is_number, arguments)):
            args = [*options, "--", *arguments, *after]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class TypedKey:
    """A key, and the word that was typed for it."""

    key: Any
    typed: str


class KeyType(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """The type of an argument that is a key."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TypedKey:
        """Return the key beside its word. Text that is no JSON stands for itself."""
        try:
            found = json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return TypedKey(value, value)
        try:
            return TypedKey(_untag(found), value)
        # An AttributeError: a zone, or a fold, of what has none.
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            InvalidOperation,
            OverflowError,
            RecursionError,
        ) as error:
            raise Mistyped(f"KEY {value[:80]}: expected a key as `cat` prints it: {error}") from None


KEY = KeyType()


def _is_number(word: str) -> bool:
    return re.match("-[0-9]", word) is not None


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's reader takes and JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def _untag(value: Any) -> Any:
    """Return the value of some tagged JSON, if keys can have it.

    This is the inverse of `tagged_json.to_json`.
    """
    if isinstance(value, list):
        return [_untag(member) for member in value]
    if not isinstance(value, dict):
        return value
    tag = next((name for name in value if name.startswith("$")), None)
    if tag is None:
        return {name: _untag(member) for name, member in value.items()}
    if tag not in _VALUES:
        raise ValueError(f"{tag} is none of {', '.join(_VALUES)}")
    found = _VALUES[tag](value[tag])
    if "fold" in value:
        found = found.replace(fold=int(value["fold"]))
    return found.replace(tzinfo=zones.find_zone(value["zone"])) if "zone" in value else found


_VALUES: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda members: tuple(map(_untag, members)),
    "$frozenset": lambda members: frozenset(map(_untag, members)),
    "$bytes": lambda text: b64decode(text, validate=True),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
    "$float": float,
    "$integer": lambda text: int(text, 16),
}


__all__ = ["KEY", "KeyCommand", "TypedKey"]
