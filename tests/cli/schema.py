"""Check values against the schemas of `--json`, and print their page: `python -m tests.cli.schema > docs/json.md`."""

import inspect
import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.manifests.model import CheckpointId

INTRODUCTION = """# JSON

With `--json` a verb prints one JSON array, or one object where there is one thing, to stdout, and nothing else. An
array stays one where it has one member or none. `cat` without `--json` prints one record on each line.

* Values of one schema have the same fields in every verb, with the same types and units.
* An *id* is `0000000042-1a2b3c4d`. A *time* is in UTC, `2026-01-31T03:00:00Z`. Sizes are bytes, and their names say so;
  so do names of seconds.
* What is not known, or not there, is `null`. A field is left out only where it says so below.
* New fields may come. A field that is here keeps its name, its type and its meaning.
* Characters that a terminal would act on are escaped. Keys, values and rows are written as `checkpointer cat --help`
  says.

## Errors and exit status

Where a verb fails, stdout is empty, or ends early after a damaged record of `cat`, and the last line of stderr is one
[error](#error), on one line:

```json
{"error": {"type": "StoreNotFoundError", "message": "no store at /data/order: …", "retryable": false, "status": 1}}
```

`type` is a class of `pyspark_checkpointer.errors`, `UsageError` for what was typed wrong, `Declined` where somebody
said no, `Interrupted` where Ctrl-C ended a verb that writes, or the class of an unexpected error. With and without
`--json` the exit status is

| status | meaning |
|---|---|
| 0 | done |
| 1 | findings (`verify`, `report`, `doctor`, `consumers`), or it cannot be done: no such thing, refused, a conflict |
| 2 | typed wrong: the same again cannot help |
| 3 | what is stored is damaged, and the verb cannot go on: any `CorruptionError` but `UnsupportedFormatError` |
| 75 | the store does not answer, or asks for less: wait and try again; any `RetryableError`, `retryable` is true |
| 130, 141 | Ctrl-C, or a closed pipe, ended it |

```sh
for wait in 0 60 120 240; do
  sleep $wait
  checkpointer verify "$ROOT" --json > found.json 2> error.json; status=$?
  [ $status = 75 ] || break
done
if [ $status = 1 ] && [ ! -s found.json ]; then status=refused; fi
case $status in
  0) ;; 1) page "damage: $(jq -r '.findings[0].problem' found.json)" ;;
  *) page "cannot verify: $(cat error.json)" ;;
esac
```

## What each verb prints

| verb | prints |
|---|---|
"""


def name_of(kind: Any) -> str:
    """Return the name of a schema in words."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()


def link(kind: Any) -> str:
    return f"[{name_of(kind)}](#{name_of(kind).replace(' ', '-')})"


def words(kind: Any) -> str:
    """Return a type as people read it."""
    origin, args = get_origin(kind), get_args(kind)
    if kind == schemas.Id or kind == schemas.Time:
        return str(args[1])
    if origin is Annotated or origin is NotRequired:
        return words(args[0])
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in args)
    if origin is list:
        return f"list of {words(args[0])}"
    if origin is dict:
        return f"{words(args[1])} by name"
    if origin in (Union, UnionType):
        return " or ".join("null" if arg is NoneType else words(arg) for arg in args)
    if is_typeddict(kind):
        return link(kind)
    return {str: "text", int: "integer", float: "number", bool: "boolean", Any: "any value"}[kind]


def fields(kind: Any) -> dict[str, tuple[Any, str]]:
    """Return the type and the meaning of each field of a schema."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        kind, *told = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if told[:1] in (["id"], ["time"]):
            kind = schemas.Id if told.pop(0) == "id" else schemas.Time
        found[name] = (kind, *told) if told else (kind, "")
    return found


MODULES = (
    "values",
    "checkpoint",
    "difference",
    "damage",
    "contents",
    "cleanup",
    "commits",
    "report",
    "diagnosis",
    "errors",
)
"""The modules of the schemas, in the order of the page."""


def all_schemas() -> list[Any]:
    """Return the schemas in the order in which they are written down."""

    def place(kind: Any) -> tuple[int, int]:
        _, line = inspect.getsourcelines(kind)
        return MODULES.index(kind.__module__.rpartition(".")[2]), line

    return sorted((kind for _, kind in inspect.getmembers(schemas, is_typeddict)), key=place)


def page() -> str:
    lines = [INTRODUCTION.rstrip("\n")]
    lines += [f"| `{form}` | {words(kind)} |" for form, kind in schemas.PRINTED]
    lines += ["", "## Schemas"]
    for kind in all_schemas():
        lines += [
            "",
            f"### {name_of(kind)}",
            "",
            inspect.cleandoc(kind.__doc__),
            "",
            "| field | type | |",
            "|---|---|---|",
        ]
        for name, (hint, meaning) in fields(kind).items():
            lines.append(f"| `{name}` | {words(hint)} | {meaning} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def faults(value: Any, kind: Any, where: str = "it") -> list[str]:
    """Return why a value is not what the schema says."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return []
    if kind == schemas.Id:
        return [] if isinstance(value, str) and str(CheckpointId.parse(value)) == value else [f"{where}: no id"]
    if kind == schemas.Time:
        good = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value)
        return [] if good else [f"{where}: no time: {value!r}"]
    if origin is Annotated or origin is NotRequired:
        return faults(value, args[0], where)
    if origin is Literal:
        return [] if value in args else [f"{where}: {value!r}"]
    if origin in (Union, UnionType):
        found = [faults(value, arg, where) for arg in args]
        return [] if [] in found else found[0]
    if origin is list:
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [fault for n, inner in enumerate(value) for fault in faults(inner, args[0], f"{where}[{n}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{where}: no object"]
        return [fault for name, inner in value.items() for fault in faults(inner, args[1], f"{where}.{name}")]
    if is_typeddict(kind):
        return _object(value, kind, where)
    good = type(value) is kind or (kind is float and type(value) is int)
    return [] if good else [f"{where}: expected {kind}, found {value!r:.60}"]


def _object(value: Any, kind: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: no object"]
    known = fields(kind)
    found = [f"{where}.{name}: not in the schema of {name_of(kind)}" for name in value if name not in known]
    for name, (hint, _) in known.items():
        if name in value:
            found += faults(value[name], hint, f"{where}.{name}")
        elif name not in kind.__optional_keys__:
            found.append(f"{where}.{name}: is missing")
    return found


if __name__ == "__main__":
    print(page(), end="")
