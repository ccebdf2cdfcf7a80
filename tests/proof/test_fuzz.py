"""Bad bytes, whatever they are: every decoder gives a value that can be written again, or an error of the tree."""

import importlib.util
import json
import os
import platform
import random
import shlex
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests import msgpack_values
from pyspark_checkpointer.table import parquet_encode
from pyspark_checkpointer.table.schema import CHANGE, FIELD_ID, KEPT, PARTITION
from tests.proof.decoders import TABLE, Decoder, examine
from tests.proof.effort import SUMMARY
from tests.proof.inventory import REASONS, called_by, decoding
from tests.proof.mutations import exchanged, inputs, mutated
from tests.proof.wrapped import table_rows

Effort = Callable[[int, int], int]
ROOT = Path(__file__).parents[2]
BY_NAME = {decoder.name: decoder for decoder in TABLE}
EACH = pytest.mark.parametrize("decoder", TABLE, ids=lambda decoder: decoder.name)


def replay(decoder: Decoder, data: bytes) -> str:
    """The command that decodes it again."""
    return shlex.join(["python", "-m", "tests.proof.guided", decoder.name, repr(data)])


def test_no_decoder_is_forgotten() -> None:
    """Whatever decodes, by its name or by what it calls, is run by the seeds of the table, or has a reason."""
    run = called_by(lambda: [decoder.decode(seed) for decoder in TABLE for seed in decoder.seeds])
    found = decoding()
    assert len(found) > 50
    missing = found - run - REASONS.keys()
    assert not missing, f"in neither the table of decoders nor the reasons: {', '.join(sorted(missing))}"
    assert REASONS.keys() <= found, "reasons for what is not there"
    assert not REASONS.keys() & run, "reasons for what is in the table"


@EACH
def test_good_bytes_are_decoded(decoder: Decoder) -> None:
    assert all(examine(decoder, seed) for seed in decoder.seeds)
    if decoder.encode is not None and decoder.name not in ("journal", "URL"):  # of which others write other forms
        assert all(decoder.encode(decoder.decode(seed)) == seed for seed in decoder.seeds)


@EACH
def test_any_value_in_the_place_of_another_gives_no_more_than_an_error(
    decoder: Decoder, effort: Effort, figures: Counter[str]
) -> None:
    tried = list(exchanged(decoder))
    for data in random.Random(decoder.name).sample(tried, min(len(tried), effort(400, len(tried)))):
        try:
            figures["values out" if examine(decoder, data) else "errors out"] += 1
        except Exception as error:
            error.add_note(replay(decoder, data))
            raise
    figures["inputs tried"] += min(len(tried), effort(400, len(tried)))


@EACH
def test_bad_bytes_give_a_value_or_an_error_of_the_tree(
    decoder: Decoder, effort: Effort, figures: Counter[str]
) -> None:
    @settings(
        max_examples=effort(100, 10_000),
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(inputs(decoder))
    def check(data: bytes) -> None:
        figures["inputs tried"] += 1
        try:
            figures["values out" if examine(decoder, data) else "errors out"] += 1
        except Exception:
            figures["other exceptions"] += 1
            raise

    figures["other exceptions"] = 0
    check()


FOUND = (
    ("URL", b"s3://bucke[t/a/b"),
    ("URL", b"memory:/"),
    ("URL", "s3://a\u2100b/x".encode()),
    ("value", b"\xdd\x00\x00\x20\x00" * 1_000 + b"\xc0" * 4_000),
    ("keyed state", b"\x00\x01" + b"\xdd\x00\x00\x20\x00" * 1_000 + b"\xc0" * 4_000),
    ("value as JSON", msgpack_values.pack(1 << 20_000)),
    ("value as JSON", b"\x91" * 500 + b"\xc0"),
    ("journal", b"update_time: 2024-01-01 00:00:00\nevent_logs: []\nother: 0x" + b"f" * 5_000),
    ("journal", b"update_time: 2024-01-01 00:00:00\nevent_logs: []\nother: 1" + b":1" * 100_000),
    ("journal", b"update_time: 2024-01-01 00:00:00\nevent_logs: []\nother: !!omap [a: 1]"),
    ("journal", b"update_time: 2024-01-01 00:00:00\nevent_logs: []\nother: 2024-01-01 00:00:00"),
    ("journal", b"update_time: 2024-01-01 00:00:00\nevent_logs: []\nother: !!set {a, b, c, d, e, f, g}"),
    ("rows of a plan", BY_NAME["rows of a plan"].seeds[0].partition(b"\n")[0] + b"\n" + b"[" * 100_000),
)
"""What was found once and mended."""


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[f"{name} {data[:20]!r}" for name, data in FOUND])
def test_what_was_found_once_stays_mended(name: str, data: bytes) -> None:
    examine(BY_NAME[name], data)
    check_cost(BY_NAME[name], data)


# ---- time and memory -------------------------------------------------------------------------------------------------

STEPS = 200
"""Calls of functions, in Python or in C, that a byte may cost."""

AT_LEAST = 50_000
"""Calls that any input may cost."""

ROOM = 4 << 20
"""Bytes of memory that any input may take, beside `Decoder.memory` for each of its own."""


def check_cost(decoder: Decoder, data: bytes) -> None:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    tracemalloc.start()
    sys.setprofile(count)
    try:
        decoder.decode(data)
    except CheckpointError:
        pass
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert steps <= STEPS * len(data) + AT_LEAST, f"{steps} calls for {len(data)} bytes: {data[:200]!r}"
    assert peak <= decoder.memory * len(data) + ROOM, f"{peak} bytes for {len(data)}: {data[:200]!r}"


@EACH
def test_time_and_memory_are_bounded(decoder: Decoder, effort: Effort, figures: Counter[str]) -> None:
    generator = random.Random(decoder.name)
    for _ in range(effort(30, 2_000)):
        draws = [generator.randrange(2**48) for _ in range(generator.randint(2, 5))]
        check_cost(decoder, mutated(decoder, draws))
        figures["inputs measured"] += 1


# ---- tables that say what no table of ours says ----------------------------------------------------------------------

KINDS = (pa.int64(), pa.int32(), pa.int8(), pa.string(), pa.float64(), pa.bool_(), pa.date32(), pa.decimal128(38, 2))


@st.composite
def hostile_tables(draw: st.DrawFn) -> bytes:
    """A Parquet file of our columns, with types, ids, nulls, values and numbers of rows of anybody's choice."""
    count = draw(st.integers(0, 5))
    arrays, columns = [], []
    for name in draw(st.permutations(["k", "n", PARTITION, CHANGE, KEPT]))[: draw(st.integers(1, 5))]:
        own = {"k": pa.int64(), "n": pa.int64(), PARTITION: pa.int32(), CHANGE: pa.int8(), KEPT: pa.string()}[name]
        kind = draw(st.sampled_from([own, own, own, *KINDS]))
        numbers = draw(st.lists(st.none() | st.integers(-1, 3) | st.just(100), min_size=count, max_size=count))
        arrays.append(
            pa.array(numbers, pa.int64()).cast(kind, safe=False) if kind != pa.date32() else pa.nulls(count, kind)
        )
        number = draw(st.sampled_from([{"k": b"1", "n": b"2"}.get(name, b"9"), b"1", b"x"]))
        columns.append(pa.field(name, kind, metadata={FIELD_ID: number}))
    return parquet_encode.encode(pa.table(arrays, schema=pa.schema(columns))).data


def test_no_table_of_an_attacker_does_more_than_raise(effort: Effort, figures: Counter[str]) -> None:
    @settings(max_examples=effort(100, 10_000), deadline=None, database=None, derandomize=True)
    @given(hostile_tables(), hostile_tables(), st.booleans(), st.integers(0, 5), st.integers(0, 5))
    def check(base: bytes, pack: bytes, whole: bool, rows: int, records: int) -> None:
        figures["inputs tried"] += 1
        try:
            table_rows(pack, records, **({} if whole else {"base": base, "rows": rows}))
            figures["values out"] += 1
        except CheckpointError:
            figures["errors out"] += 1

    check()


# ---- coverage-guided -------------------------------------------------------------------------------------------------


def test_the_command_that_replays_an_input_does() -> None:
    decoder = BY_NAME["row groups"]
    command = shlex.split(replay(decoder, b"'\"\\\x00" + decoder.seeds[0]))
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "an error of the tree\n"


HAS_WHEEL = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 14)
GUIDED = [decoder for decoder in TABLE if SUMMARY is not None or decoder.name in ("manifest", "journal")]


@pytest.mark.parametrize("decoder", GUIDED, ids=lambda decoder: decoder.name)
def test_guided_by_coverage(decoder: Decoder, effort: Effort, figures: Counter[str], tmp_path: Path) -> None:
    runs = effort(256, 20_480)
    if importlib.util.find_spec("atheris") is None:
        missing = "atheris, which pip installs on Linux (x86_64) for Python up to 3.13, is not installed"
        if HAS_WHEEL and os.environ.get("CHECKPOINTER_REQUIRE_SERVERS"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    corpus, counts = tmp_path / "corpus", tmp_path / "counts"
    corpus.mkdir()
    for number, seed in enumerate(decoder.seeds):
        (corpus / str(number)).write_bytes(seed)
    # Linux counts the most memory of this process, which starts the other one, for that one too.
    memory = 1024 + getrusage(RUSAGE_SELF).ru_maxrss // 1024
    limits = [f"-rss_limit_mb={memory}", "-max_len=8192", "-len_control=0", "-timeout=300"]
    limits.append(f"-artifact_prefix={tmp_path}/")
    command = [sys.executable, "-m", "tests.proof.guided", decoder.name, str(counts), "-seed=1", f"-runs={runs}"]
    done = subprocess.run([*command, *limits, str(corpus)], cwd=ROOT, capture_output=True, text=True, errors="replace")
    crashes = [path.read_bytes() for path in tmp_path.glob("*-*") if path.is_file()]
    if done.returncode or crashes:
        replays = [replay(decoder, data) for data in crashes]
        pytest.fail("\n".join([*replays, done.stderr[-3000:]]), pytrace=False)
    for name, count in json.loads(counts.read_text()).items():
        figures[f"{name} guided by coverage"] += count
