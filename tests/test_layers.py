"""Lower layers never import higher ones. The table says which there are, what each may import, and why."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Layer:
    """`modules` are these and what is below them; `below` names layers, `packages` those of others."""

    name: str
    why: str
    modules: tuple[str, ...]
    below: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


LAYERS = (
    Layer(
        "folders",
        "A folder of a checkout that is imported by its own name is the package: that comes before anything is loaded.",
        ("pyspark_checkpointer.one_copy",),
    ),
    Layer(
        "format",
        "The format is values and bytes, so that it can be read, tested and written again without a store or a clock.",
        ("pyspark_checkpointer.manifests",),
        ("folders",),
        packages=("msgpack", "msgspec", "zstandard"),
    ),
    Layer(
        "errors",
        "Every layer raises errors of one tree, which therefore stands below all of them.",
        ("pyspark_checkpointer.errors",),
        ("format",),
    ),
    Layer(
        "display",
        "How values read is decided once, for text and for notebooks, and knows no object of ours.",
        ("pyspark_checkpointer.display",),
    ),
    Layer(
        "compaction",
        "When chains are folded is a function of sizes, so that it can be tried on any history without a store.",
        ("pyspark_checkpointer.compaction",),
        ("format",),
    ),
    Layer(
        "runtime",
        "Threads, the event loop, time and randomness are handed in from one place, so that tests can replace them.",
        ("pyspark_checkpointer.runtime",),
        ("format", "errors"),
        ("fsspec",),
    ),
    Layer(
        "keyed",
        "A keyed state is a dict that knows its changes; saving it is somebody else's business.",
        ("pyspark_checkpointer.keyed",),
        ("format", "errors", "compaction", "runtime"),
    ),
    Layer(
        "store",
        "A store moves whole objects and knows nothing of checkpoints, so a new backend is one folder and one line.",
        ("pyspark_checkpointer.storage",),
        ("format", "errors", "runtime"),
        (
            "fsspec",
            "s3fs",
            "adlfs",
            "azure",
            "gcsfs",
            "google",
            "botocore",
            "aiobotocore",
            "aiohttp",
            "yarl",
            "tenacity",
            "cryptography",
        ),
    ),
    Layer(
        "checkpoint",
        "The protocol talks to a store through its interface only, whatever cloud is behind it.",
        ("pyspark_checkpointer.checkpoint",),
        ("format", "errors", "display", "compaction", "runtime", "keyed", "store"),
        ("zstandard",),
    ),
    Layer(
        "consumers",
        "Positions of stream consumers share the stores, and nothing of checkpoints.",
        ("pyspark_checkpointer.consumers",),
        ("format", "errors", "runtime", "store"),
        ("azure", "yaml"),
    ),
    Layer(
        "admin",
        "Looking after a store is done beside the jobs: nothing that a batch needs depends on it.",
        ("pyspark_checkpointer.admin",),
        ("format", "errors", "display", "compaction", "runtime", "store", "checkpoint"),
        ("zstandard",),
    ),
    Layer(
        "table",
        "Tables are merged in Arrow alone, so that executors, the driver and readers without Spark do it alike.",
        ("pyspark_checkpointer.table",),
        ("format", "errors", "display", "compaction", "runtime", "store", "checkpoint", "admin"),
        ("pyarrow", "numpy", "pandas", "polars"),
    ),
    Layer(
        "client",
        "The public classes add no behaviour: two of them, blocking and awaitable, stand on the same functions.",
        ("pyspark_checkpointer.client",),
        ("format", "errors", "display", "runtime", "keyed", "store", "checkpoint", "admin", "table"),
        ("opentelemetry",),
    ),
    Layer(
        "spark",
        "Only this part imports Spark, so that everything else runs, and is tested, without a JVM.",
        ("pyspark_checkpointer.spark",),
        (
            *("format", "errors", "display", "compaction", "runtime", "keyed", "store", "checkpoint", "admin", "table"),
            "client",
        ),
        ("pyspark", "py4j", "pyarrow", "pandas"),
    ),
    Layer(
        "public",
        "What users import by name is a list, without behaviour of its own; Spark finds its data source here too.",
        ("pyspark_checkpointer.__init__",),
        ("folders", "errors", "keyed", "admin", "client", "spark"),
    ),
    Layer(
        "commands",
        "A command line calls what a program could call, and holds no logic of its own.",
        ("pyspark_checkpointer.cli", "pyspark_checkpointer.__main__"),
        (
            *("format", "errors", "display", "runtime", "keyed", "store", "checkpoint", "consumers", "admin", "table"),
            *("client", "public"),
        ),
        ("click", "rich", "jinja2"),
    ),
    Layer(
        "testing",
        "Faults are put in from outside: what is tested does not know that there are tests.",
        ("pyspark_checkpointer.testing",),
        ("format", "errors", "runtime", "store", "checkpoint", "client", "public"),
        ("pytest",),
    ),
)


BY_NAME = {layer.name: layer for layer in LAYERS}

PURE = {
    *("base64", "bisect", "collections", "contextlib", "dataclasses", "datetime", "decimal", "functools", "hashlib"),
    *(
        "io",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "reprlib",
        "sys",
        "types",
        "typing",
        "urllib",
        "uuid",
        "zlib",
    ),
    "zoneinfo",
}
"""List what the format may use of the standard library: no files but the rules of time zones, no sockets, no clock."""

IMPORTING_BY_NAME = {
    "pyspark_checkpointer.storage": "the registry names the module of each kind of store",
    "pyspark_checkpointer.storage.connection": "a thread imports the package of a store, which takes long",
    "pyspark_checkpointer.storage.fsspec_any.store": "it asks whether the package of a filesystem is installed",
    "pyspark_checkpointer.spark.executors": "a worker says which versions of other packages it has",
    "pyspark_checkpointer.one_copy": "a folder of a checkout is the package",
}
"""Modules that import what no import statement names, and why."""

REACHING = {"importlib", "imp", "pkgutil", "runpy", "zipimport"}
"""Modules of the standard library that import by name."""


PACKAGE = "pyspark_checkpointer"
FOLDERS = {ROOT / "checkpointer": PACKAGE, ROOT / "manifests": f"{PACKAGE}.manifests"}
"""The folders of the repository, and what they are imported as."""


def module_name(folder: Path, path: Path) -> str:
    """Return `pyspark_checkpointer.storage` for its `__init__.py`; the package itself is `….__init__`."""
    name = ".".join((FOLDERS[folder], *path.relative_to(folder).with_suffix("").parts))
    return name if name == f"{PACKAGE}.__init__" else name.removesuffix(".__init__")


FILES = {module_name(folder, path): path for folder in FOLDERS for path in folder.rglob("*.py")}


def layer_of(module: str) -> Layer | None:
    found = [
        (len(prefix), layer)
        for layer in LAYERS
        for prefix in layer.modules
        if module == prefix or module.startswith(prefix + ".")
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def by_name(tree: ast.AST) -> Iterator[str]:
    """The places in which a module can import, or reach, what no import statement names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from (name for name in _imported(node) if name.partition(".")[0] in REACHING)
            case ast.Name(id="__import__" | "__builtins__") | ast.Attribute(attr="__import__"):
                yield "__import__"
            case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
                yield "sys.modules"
            case ast.Attribute(value=ast.Name(id=name)) if name == PACKAGE:
                # `import pyspark_checkpointer.errors` gives a name through which every loaded module is reached.
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield name


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def imports(tree: ast.AST, *, top: bool = False) -> Iterator[str]:
    """What a module imports; those within functions too, unless only the `top` is asked for."""
    nodes = ast.iter_child_nodes(tree) if top else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module


@cache
def parse(module: str) -> ast.AST:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def own_name(imported: str) -> str:
    return f"{PACKAGE}.__init__" if imported == PACKAGE else imported


def faults(module: str, tree: ast.AST) -> list[str]:
    """What a module must not import."""
    layer = layer_of(module)
    if layer is None:
        return [f"{module} belongs to no layer: enter it in the table of tests/test_layers.py"]
    allowed = {layer.name, *layer.below}
    found = []
    for imported in imports(tree):
        package = imported.partition(".")[0]
        if package == PACKAGE:
            target = layer_of(own_name(imported))
            if target is None or target.name not in allowed:
                found.append(f"{module} ({layer.name}) imports {imported} ({target and target.name}): {layer.why}")
        elif package not in (sys.stdlib_module_names if layer.name != "format" else PURE) | {*layer.packages}:
            found.append(f"{module} ({layer.name}) imports {imported}: {layer.why}")
    if module not in IMPORTING_BY_NAME:
        found += [
            f"{module} ({layer.name}) reaches modules by name, unseen by this test: {way}" for way in by_name(tree)
        ]
    if layer.name == "format":
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        found += [f"{module} opens a file: {layer.why}" for call in calls if ast.unparse(call) in ("open", "io.open")]
    return found


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_module_imports_only_what_lies_below_it(module: str) -> None:
    assert faults(module, parse(module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pyspark_checkpointer.manifests.manifest_json", "import fsspec"),
        ("pyspark_checkpointer.manifests.manifest_json", "from pyspark_checkpointer.errors import CheckpointError"),
        ("pyspark_checkpointer.manifests.manifest_json", "def late():\n    from pyspark_checkpointer import objects"),
        ("pyspark_checkpointer.storage.s3.store", "from pyspark_checkpointer.checkpoint.latest import advance"),
        ("pyspark_checkpointer.storage.s3.store", "from pyspark_checkpointer import Checkpointer"),
        ("pyspark_checkpointer.storage.s3.store", "import pyspark"),
        ("pyspark_checkpointer.manifests.msgpack_values", "from pyspark_checkpointer.storage import open_store"),
        ("pyspark_checkpointer.checkpoint.latest", "import s3fs.core"),
        ("pyspark_checkpointer.checkpoint.latest", "from pyspark_checkpointer.client._sync import Checkpointer"),
        ("pyspark_checkpointer.checkpoint.latest", "import importlib"),
        ("pyspark_checkpointer.checkpoint.latest", "from importlib import import_module"),
        ("pyspark_checkpointer.checkpoint.latest", "client = __import__('pyspark_checkpointer.client')"),
        ("pyspark_checkpointer.checkpoint.latest", "import sys\nsys.modules['pyspark_checkpointer.client']"),
        ("pyspark_checkpointer.checkpoint.latest", "import pyspark_checkpointer.errors\npyspark_checkpointer.client"),
        ("pyspark_checkpointer.checkpoint.latest", "exec('import pyspark_checkpointer.client')"),
        ("pyspark_checkpointer.manifests.manifest_json", "import socket"),
        ("pyspark_checkpointer.manifests.manifest_json", "from pathlib import Path"),
        ("pyspark_checkpointer.manifests.manifest_json", "data = open('_latest').read()"),
        ("pyspark_checkpointer.client._sync", "from pyspark.sql import DataFrame"),
        ("pyspark_checkpointer.client._sync", "import click"),
        ("pyspark_checkpointer.checkpoint.metering", "import opentelemetry"),
        ("pyspark_checkpointer.utils", "import os"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(faults(module, ast.parse(source))) == 1


def test_the_table_goes_from_low_to_high() -> None:
    seen: set[str] = set()
    for layer in LAYERS:
        assert set(layer.below) <= seen, layer.name
        assert layer.why.endswith(".")
        seen.add(layer.name)


@pytest.mark.parametrize("top", [True, False], ids=["at the top", "in functions too"])
def test_modules_do_not_import_each_other_in_a_circle(top: bool) -> None:
    graph = {
        module: {name for name in map(own_name, imports(parse(module), top=top)) if name in FILES and name != module}
        for module in FILES
    }
    assert len([*TopologicalSorter(graph).static_order()]) == len(FILES)


def room(module: str) -> str:
    """Return what stands directly below the package, of which a module is a part."""
    return module.split(".")[1]


def test_the_house_has_few_rooms_on_few_floors() -> None:
    graph: dict[str, set[str]] = {room(module): set() for module in FILES}
    for module in FILES:
        graph[room(module)] |= {
            room(name) for name in map(own_name, imports(parse(module))) if name in FILES and room(name) != room(module)
        }
    floors: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():  # raises where rooms close a circle
        floors[name] = 1 + max((floors[below] for below in graph[name]), default=0)
    assert len(floors) <= 22
    assert max(floors.values()) <= 9, floors


def test_little_stands_directly_in_the_package() -> None:
    folders = [
        path
        for path in (ROOT / "checkpointer").iterdir()
        if path.is_dir() and not path.is_symlink() and path.name != "__pycache__"
    ]
    assert len(folders) <= 11, folders
    assert len([*(ROOT / "checkpointer").glob("*.py")]) <= 6


@pytest.mark.parametrize("module", FILES)
def test_a_coroutine_logs_safely(module: str) -> None:
    """A handler of the user that ends the program would end the event loop; later calls would wait for ever."""
    logged = [
        call.lineno
        for function in ast.walk(parse(module))
        if isinstance(function, ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("logger.")
    ]
    assert logged == [], "call log_safely() of runtime.user_functions"


MAX_LINES = 320
"""Lines of a file that a reader takes in as one thing."""

_FACE = "it is a face: most of it is the documents of its public methods, which users look up in one place"
_CLASS = "it is one class around one state, and no part of it can be understood without the others"
_PATH = "a save or a restore enters it, and another file would be one more hop on the way"

LONGER = {
    "client._async": _FACE,
    "client._async_checkpoint": _FACE,
    "client._sync": "it is generated",
    "client._sync_checkpoint": "it is generated",
    "spark.state": _FACE,
    "spark.table": _FACE,
    "keyed.state": _FACE,
    "testing.faults": _FACE,
    "keyed.partition": _CLASS,
    "keyed.content": _CLASS,
    "keyed.reentry": _CLASS,
    "checkpoint.verify": _CLASS,
    "consumers.kinesis.checkpointer": _CLASS,
    "consumers.kinesis.leases": _CLASS,
    "consumers.kinesis.worker": _CLASS,
    "consumers.leases": _CLASS,
    "consumers.eventprocessorhost.lease_manager": _CLASS,
    "consumers.write_behind": _CLASS,
    "spark.table_changes": _CLASS,
    "storage.local.store": _CLASS,
    "storage.request_path": _PATH,
    "storage.base": _PATH,
    "manifests.keyed_records": _PATH,
    "manifests.model": _PATH,
    "manifests.object_paths": "each path is made and read in one place",
    "table.user_calls": "what a function is given and what it may return are one contract",
    "compaction": "all that decides when chains are compacted stands in one place",
    "consumers.journal.yaml_format": "what it writes and what it reads back are one format, held side by side",
}
"""Files with more lines, and why they are not parted."""


def test_a_file_is_long_only_for_a_reason() -> None:
    lines = {
        module.removeprefix(f"{PACKAGE}."): len(path.read_text(encoding="utf-8").splitlines())
        for module, path in FILES.items()
    }
    long = {module for module, count in lines.items() if count > MAX_LINES}
    assert long == {*LONGER}, "part it where a reader would look for the parts, or say in LONGER why not"


def test_the_architecture_names_what_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    questions = text[text.index("## Where to look") :]
    paths = re.findall(r"`((?:checkpointer|manifests)/[\w/.]+)`", questions)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    named = re.findall(r"`(\w+)` in `([\w/.]+)`", questions)
    assert len(named) > 8
    assert [n for n, path in named if not re.search(rf"(def|class) {n}\b", (ROOT / path).read_text("utf-8"))] == []


def test_the_architecture_says_what_each_package_does() -> None:
    said = set(
        re.findall(
            r"^\| \[?`(?:checkpointer/)?(\w+)/`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), re.M
        )
    )
    assert said == {path.parent.name for path in (ROOT / "checkpointer").glob("*/__init__.py")}


def test_importing_the_package_brings_no_cloud_and_no_spark() -> None:
    program = "import sys, pyspark_checkpointer; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "s3fs", "adlfs", "azure", "gcsfs", "botocore", "aiohttp"}
    heavy |= {"click", "rich", "jinja2", "opentelemetry"}
    assert not heavy & set(done.stdout.split())


def test_the_command_line_brings_only_what_it_shows() -> None:
    program = "import sys, pyspark_checkpointer.cli.app; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "click" in loaded
    assert (
        not {"rich", "jinja2", "pyspark", "pyarrow", "numpy", "s3fs", "adlfs", "azure", "gcsfs", "google", "botocore"}
        & loaded
    )


FOREIGN_PRIVATES = {
    # What the standard library, fsspec, aiohttp, the SDKs of stores and PySpark offer under such a name alone.
    *("_asdict", "_fields", "_replace", "_is_owned", "_current_frames", "_is_gil_enabled", "_register_atexit"),
    *("_strip_protocol", "_s3creator", "_call_s3", "_get_params", "_set_session", "_use_client_cert"),
    *("_retry_connection", "_request_signer", "_credentials", "_pipeline", "_transport", "_use_env_settings"),
    *("_jvm", "_jdf", "_jsc", "_jsparkSession", "_active_spark_context", "_instantiatedSession", "_2", "_gateway"),
    *("_collect_as_arrow", "_parse_datatype_string", "_temp_dir"),
}
"""Private names of other people's objects that a module may use, because there is no other way."""

OWN_OBJECTS = ("self", "cls", "super()")

READS_BY_NAME = {"getattr": 1, "setattr": 1, "delattr": 1, "hasattr": 1, "attrgetter": 0, "methodcaller": 0}
"""Functions that take the name of an attribute as text, and where among their arguments."""


def is_private(name: str) -> bool:
    """`_repr_html_` is none: such names are the protocol of notebooks."""
    return re.fullmatch("_([^_]|[^_].*[^_])", name) is not None


def defined_by(owner: ast.ClassDef) -> set[str]:
    """The names that a class gives to its methods, and to attributes of its own objects."""
    found = set()
    for node in owner.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Assign() | ast.AnnAssign():
                found |= {target.id for target in ast.walk(node) if isinstance(target, ast.Name)}
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def classes_of(tree: ast.AST) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@cache
def known_classes() -> dict[str, ast.ClassDef]:
    """The classes of the library, by name, to find those that a class inherits from."""
    return {name: node for module in FILES for name, node in classes_of(parse(module)).items()}


def class_name(node: ast.expr | None) -> str | None:
    """The class that an annotation or a base names: `Lease` for `"Lease"`, `leases.Lease` and `Lease[T]`."""
    match node:
        case ast.Constant(value=str(text)):
            return class_name(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=value):
            return class_name(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


class Strangers(ast.NodeVisitor):
    """Finds the private names of others that a module uses.

    A class may use its own names and inherited ones, also on another object of its class. A function of the module may
    use those of the module's classes. The annotation of a parameter tells whose object it is; of other objects the name
    alone is judged.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.classes = classes_of(tree)
        self.owner: ast.ClassDef | None = None
        self.parameters: dict[str, str] = {}
        self.found: list[str] = []
        self.visit(tree)

    def line(self, owner: ast.ClassDef) -> dict[str, ast.ClassDef]:
        """A class and those it inherits from, by name."""
        found = {owner.name: owner}
        for base in map(class_name, owner.bases):
            above = self.classes.get(base or "") or known_classes().get(base or "")
            found |= self.line(above) if above is not None and above is not owner else {}
        return found

    def judge(self, node: ast.AST, of: ast.expr, name: str) -> None:
        if not is_private(name) or name in FOREIGN_PRIVATES or ast.unparse(of) in OWN_OBJECTS:
            return
        friends = self.classes if self.owner is None else self.line(self.owner)
        known = self.parameters.get(of.id) if isinstance(of, ast.Name) else None
        wrong = (known in self.classes or known in known_classes()) and known not in friends
        if wrong or not any(name in defined_by(friend) for friend in friends.values()):
            self.found.append(ast.unparse(node))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self.owner = self.owner, node
        self.generic_visit(node)
        self.owner = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self.parameters
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self.parameters = before | {one.arg: class_name(one.annotation) or "" for one in arguments}
        self.generic_visit(node)
        self.parameters = before

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.judge(node, node.value, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        place = READS_BY_NAME.get(class_name(node.func) or "")
        if place is not None and len(node.args) > place:
            match node.args[place]:
                case ast.Constant(value=str(name)):
                    self.judge(node, node.args[0], name)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.found += [f"from {node.module} import {alias.name}" for alias in node.names if is_private(alias.name)]


def strangers(tree: ast.AST) -> list[str]:
    return Strangers(tree).found


@pytest.mark.parametrize("module", sorted(FILES))
def test_no_module_uses_the_private_names_of_another(module: str) -> None:
    assert strangers(parse(module)) == []


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("client._session.close()", "client._session"),
        ("getattr(client, '_session')", "getattr(client, '_session')"),
        ("attrgetter('_session')(client)", "attrgetter('_session')"),
        ("from module import _name", "from module import _name"),
        (
            "class Own:\n    def f(self):\n        self._x = 1\nclass Other:\n    def f(self, own):\n        own._x",
            "own._x",
        ),
        ("def f(own):\n    own._x = 1\n    return own._x", "own._x"),
        (
            "class Own:\n    _x = 1\nclass Other:\n    _x = 2\n    def f(self, own: 'Own'):\n        return own._x",
            "own._x",
        ),
        ("class Own:\n    _x = 1\ndef f(session: 'Session'):\n    return session._x", "session._x"),
    ],
)
def test_a_private_name_of_another_class_is_seen(source: str, seen: str) -> None:
    assert {*strangers(ast.parse(source))} == {seen}


@pytest.mark.parametrize(
    "source",
    [
        "class Own:\n    def f(self):\n        return self._own.close()",
        "class Own:\n    _x = 1\n    def f(self, other: 'Own'):\n        return other._x",
        "class Base:\n    _x = 1\nclass Own(Base):\n    def f(self, other: 'Own'):\n        return other._x",
        "class Own:\n    _x = 1\ndef friend(own: Own):\n    return own._x",
        "table._repr_html_()",
    ],
)
def test_a_private_name_of_the_own_class_may_be_used(source: str) -> None:
    assert strangers(ast.parse(source)) == []


def test_the_names_of_other_peoples_objects_are_none_of_ours() -> None:
    assert FOREIGN_PRIVATES & {name for owner in known_classes().values() for name in defined_by(owner)} == set()


def metered_by_hand(tree: ast.AST) -> list[str]:
    """The places that enter a meter, or count requests, in a block of their own."""
    entered = [item.context_expr for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items]
    entered += [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and class_name(node.func) == "enter_context" and node.args
    ]
    return [
        ast.unparse(call)
        for call in entered
        if isinstance(call, ast.Call)
        and (
            class_name(call.func) == "counted"
            or (isinstance(call.func, ast.Attribute) and re.search(r"meter\b", ast.unparse(call.func.value)))
        )
    ]


METERING = f"{PACKAGE}.checkpoint.metering"
"""The one module that enters a meter: its decorator does."""

COUNTING = {
    f"{PACKAGE}.spark.early_compaction": "it works between two batches, and beside the calls of a batch",
}
"""Modules that count requests without a meter, and why."""


@pytest.mark.parametrize("module", sorted({*FILES} - {METERING, *COUNTING}))
def test_no_method_enters_a_meter_by_hand(module: str) -> None:
    assert metered_by_hand(parse(module)) == [], "decorate it with `blocking` of checkpoint/metering.py"


@pytest.mark.parametrize(
    "source",
    [
        "with self.meter.blocking():\n    pass",
        "with meter.blocking(), lock:\n    pass",
        "async def f(self):\n    with self._core.meter.running():\n        pass",
        "with counted(meter.traffic):\n    pass",
        "stack.enter_context(writer.meter.blocking())",
    ],
)
def test_a_meter_entered_by_hand_is_seen(source: str) -> None:
    assert len(metered_by_hand(ast.parse(source))) == 1


def test_the_decorator_alone_enters_the_meter() -> None:
    entries = [
        function.name
        for function in ast.walk(parse(METERING))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(
            "_running" in ast.unparse(item.context_expr)
            for n in function.body
            if isinstance(n, ast.With)
            for item in n.items
        )
    ]
    assert sorted(entries) == ["awaited", "called", "generated"]


@pytest.fixture(scope="module")
def told() -> str:
    """Return what `scripts/hops` prints."""
    return subprocess.run([sys.executable, ROOT / "scripts/hops"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("path", "most"), [("save", (39, 143, 83)), ("restore", (36, 80, 57))])
def test_a_reader_who_follows_a_path_enters_few_files_and_goes_between_few_pairs_of_them(
    path: str, most: tuple[int, int, int], told: str
) -> None:
    found = re.search(rf"{path}: (\d+) files, (\d+) hops between (\d+) pairs", told)
    assert found, told
    files, hops, pairs = map(int, found.groups())
    assert 20 < files < pairs < hops, "nothing was counted"
    assert all(count <= limit for count, limit in zip((files, hops, pairs), most, strict=True)), told
