"""Coverage-guided fuzzing of one decoder, in a process of its own.

python -m tests.proof.guided DECODER COUNTS -seed=1 -runs=1000 CORPUS   (the rest is libFuzzer's)
python -m tests.proof.guided DECODER b'…'                               (replays one input)
"""

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

REPLAYS = sys.argv[2:] and sys.argv[2].startswith(("b'", 'b"'))

DECODING = re.compile(
    r"pyspark_checkpointer\.(manifests|consumers|table|storage\.url|admin\.(retention\.plan|streaming))(\.|$)"
)
"""What the decoders are in. To instrument a module takes ten times as long as to import it, in each process."""

PACKAGE = Path(__file__).parents[2] / "src" / "pyspark_checkpointer"


def others() -> list[str]:
    """Return the names of the modules of this library that decode nothing."""
    files = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in files]
    return [name for name in names if not DECODING.match(name)]


try:
    import atheris
except ImportError:  # replaying needs none
    REPLAYS = True

if REPLAYS:
    from contextlib import nullcontext as instrumented
else:

    def instrumented() -> object:
        return atheris.instrument_imports(
            include=["pyspark_checkpointer", "yaml"], exclude=others(), enable_loader_override=False
        )


with instrumented():  # type: ignore[attr-defined]
    from tests.proof.decoders import TABLE, examine

EVERY = 256
"""Inputs after which the counts are written: libFuzzer ends the process without a word to Python."""


def main(name: str, where: str, *options: str) -> None:
    decoder = next(decoder for decoder in TABLE if decoder.name == name)
    if where.startswith(("b'", 'b"')):
        print("a value" if examine(decoder, ast.literal_eval(where)) else "an error of the tree")
        return
    counts, file = Counter(inputs=0), Path(where)

    def one(data: bytes) -> None:
        counts["inputs"] += 1
        for some in (data,) if decoder.seal is None else (data, decoder.seal(data)):
            counts["values" if examine(decoder, some) else "errors"] += 1
        if counts["inputs"] % EVERY == 0:
            file.write_text(json.dumps(counts))

    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
