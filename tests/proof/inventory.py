"""Which functions of the product decode bytes or text from outside: by their name, or by whom they call for it."""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]

NAMED = re.compile("_?(decode|parse|unpack|load|from_)")

PARSERS = {
    *("loads", "unpackb", "Unpacker", "fromisoformat", "b64decode", "literal_eval", "eval", "exec"),
    *(
        "ParquetFile",
        "read_metadata",
        "read_table",
        "open_stream",
        "stream_reader",
        "urlsplit",
        "from_bytes",
        "safe_load",
    ),
}
"""What makes values of bytes or text, by its last name. `yaml.load` is found as `load`."""

_HANDS_ON = "gets bytes, and hands them to a decoder of the table"
_OF_THE_JOB = "made and read by processes of one job, and never stored"
_OF_THE_CALLER = "reads what its caller wrote"
_OWN_TEXT = "reads what it encoded itself, a moment before"
_OF_A_SERVER = "reads an answer of the service: any other form is an error that tests/storage/gcs/test_gcs.py provokes"
_OF_VOLUMES = "reads an answer of the service, whose forms tests/storage/databricks provokes"
_OF_A_KEY_SERVICE = "reads an answer of a key service, whose forms tests/storage/encryption/key_services provokes"
_NONE = "decodes nothing"

REASONS = {
    "pyspark_checkpointer.spark.versions.parse_schema": _OF_THE_CALLER,
    "pyspark_checkpointer.storage.http.document": _OF_A_SERVER,
    "pyspark_checkpointer.storage.databricks.client.VolumesClient.find_endpoint": _OF_VOLUMES,
    "pyspark_checkpointer.storage.databricks.errors.AnswerError.__init__": _OF_VOLUMES,
    "pyspark_checkpointer.storage.databricks.login.address_of": _OF_THE_CALLER,
    "pyspark_checkpointer.storage.gcs.errors.AnswerError.__init__": _OF_A_SERVER,
    "pyspark_checkpointer.storage.azure.listed_copies.listed_blob": _HANDS_ON,
    "pyspark_checkpointer.manifests.msgpack_checks.refuse_torn": _OWN_TEXT,
    "pyspark_checkpointer.client._async.AsyncCheckpointer.load_artifact": _HANDS_ON,
    "pyspark_checkpointer.client._async.AsyncCheckpointer.load_manifest": _HANDS_ON,
    "pyspark_checkpointer.admin.followers._decode": _HANDS_ON,
    "pyspark_checkpointer.storage.encryption.keyring._decode": _HANDS_ON,
    "pyspark_checkpointer.keyed.state._unpack": _HANDS_ON,
    "pyspark_checkpointer.keyed.state.KeyedState._unpack": _HANDS_ON,
    "pyspark_checkpointer.cli.cleanup._load": _HANDS_ON,
    "pyspark_checkpointer.admin.retention.garbage_collect.load_plan": _HANDS_ON,
    "pyspark_checkpointer.client._async.AsyncCheckpointer.load_plan": _HANDS_ON,
    "pyspark_checkpointer.client._sync.Checkpointer.load_plan": _HANDS_ON,
    "pyspark_checkpointer.cli.cost_options._loads": _OF_THE_CALLER,
    "pyspark_checkpointer.cli.key_argument.KeyCommand.parse_args": _OF_THE_CALLER,
    "pyspark_checkpointer.cli.key_argument.KeyType.convert": _OF_THE_CALLER,
    "pyspark_checkpointer.cli.keys._time": _OWN_TEXT,
    "pyspark_checkpointer.cli.keys.compare": _OWN_TEXT,
    "pyspark_checkpointer.cli.arguments.parse_duration": _OF_THE_CALLER,
    "pyspark_checkpointer.cli.arguments.parse_options": _OF_THE_CALLER,
    "pyspark_checkpointer.storage.encryption.chunked.MessageKey.__init__": _NONE,
    "pyspark_checkpointer.storage.encryption.key_registry.parse_provider": _OF_THE_CALLER,
    "pyspark_checkpointer.storage.signatures.signing_keys._parse": _OF_THE_CALLER,
    "pyspark_checkpointer.storage.encryption.key_services.azure_key_vault.AzureKeyVault._headers": _OF_A_KEY_SERVICE,
    "pyspark_checkpointer.storage.encryption.key_services.https.Service.decode64": _OF_A_KEY_SERVICE,
    "pyspark_checkpointer.storage.encryption.key_services.https._parse": _OF_A_KEY_SERVICE,
    "pyspark_checkpointer.checkpoint.metadata.Segments._decode": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.metadata.Segments.load_operator": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.metadata.Segments.load": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.metadata.load_operators": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.selector.CheckpointSelector.parse": _OF_THE_CALLER,
    "pyspark_checkpointer.checkpoint.selector._to_time": _OF_THE_CALLER,
    "pyspark_checkpointer.checkpoint.latest._decode": _HANDS_ON,
    "pyspark_checkpointer.consumers.cas_object.CasObject._decode": _HANDS_ON,
    "pyspark_checkpointer.consumers.journal.file.JournalFile._decode": _HANDS_ON,
    "pyspark_checkpointer.consumers.kinesis.checkpointer.RecordCheckpointer._decode": _HANDS_ON,
    "pyspark_checkpointer.cli.report_page.gather._load_chains": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.decode.decode": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.low_level.load_artifact": _HANDS_ON,
    "pyspark_checkpointer.checkpoint.low_level.load_manifest": _HANDS_ON,
    "pyspark_checkpointer.admin.retention.reachability._hash": _NONE,
    "pyspark_checkpointer.admin.older_states.OlderStates._load": _HANDS_ON,
    "pyspark_checkpointer.admin.older_states.OlderStates._load_operator": _HANDS_ON,
    "pyspark_checkpointer.spark.source_options.ReadRequest.of": _OF_THE_CALLER,
    "pyspark_checkpointer.spark.function_copy.copy_function": _OF_THE_JOB,
    "pyspark_checkpointer.spark.emitted.EmittedTask.read": _OF_THE_JOB,
    "pyspark_checkpointer.spark.emitted.frame_of_emitted": _OF_THE_JOB,
    "pyspark_checkpointer.spark.emitted._frame_of_task": _OWN_TEXT,
    "pyspark_checkpointer.spark.emitted.frame_of_rows": _OWN_TEXT,
    "pyspark_checkpointer.spark.executors.probe_executors": _OF_THE_JOB,
    "pyspark_checkpointer.spark.executors.send": _OF_THE_JOB,
    "pyspark_checkpointer.spark.table_jobs.TableJobs._pack": _OF_THE_JOB,
    "pyspark_checkpointer.spark.task_client._client": _OF_THE_JOB,
    "pyspark_checkpointer.spark.write_tasks.TaskOutput.load": _OF_THE_JOB,
    "pyspark_checkpointer.table.snapshots._decode": _HANDS_ON,
    "pyspark_checkpointer.table.frames._from_pandas": _NONE,
    "pyspark_checkpointer.table.frames._from_series": _NONE,
    "pyspark_checkpointer.table.frames.from_arrow": _NONE,
    "pyspark_checkpointer.table.frames.is_index": _OWN_TEXT,
    "pyspark_checkpointer.keyed.state.KeyedState.from_checkpoint": _NONE,
    "pyspark_checkpointer.client._sync.Checkpointer.load_artifact": _HANDS_ON,
    "pyspark_checkpointer.client._sync.Checkpointer.load_manifest": _HANDS_ON,
}
"""Those of them that need no fuzzing, each with why."""


def decoding() -> set[str]:
    """The qualified names of all functions that decode."""
    found = set()
    for folder, prefix in (("checkpointer", "pyspark_checkpointer"), ("manifests", "pyspark_checkpointer.manifests")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join((prefix, *path.relative_to(ROOT / folder).with_suffix("").parts)).removesuffix(
                ".__init__"
            )
            for name, node in _functions(ast.parse(path.read_text()), module):
                if NAMED.match(node.name) or _calls(node) & PARSERS:
                    found.add(name)
    return found


def _functions(tree: ast.AST, prefix: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods; what stands inside a function belongs to it."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found += _functions(node, f"{prefix}.{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((f"{prefix}.{node.name}", node))
    return found


def _calls(node: ast.AST) -> set[str]:
    called = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    names = {function.attr for function in called if isinstance(function, ast.Attribute)}
    return names | {function.id for function in called if isinstance(function, ast.Name)}


def called_by(work: Callable[[], object]) -> set[str]:
    """The qualified names of the product's functions that `work` runs."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    found = set()
    for code in seen:
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT / "src"):
            module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
            found.add(f"{module}.{code.co_qualname}")
    return found


__all__ = ["REASONS", "called_by", "decoding"]
