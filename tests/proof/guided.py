"""Coverage-guided fuzzing of one decoder, in a process of its own.

python -m tests.proof.guided DECODER COUNTS -seed=1 -runs=1000 CORPUS   (the rest is libFuzzer's)
python -m tests.proof.guided DECODER b'…'                               (replays one input)
"""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

try:
    import atheris
except ImportError:  # replaying needs none
    from contextlib import nullcontext as instrumented
else:

    def instrumented() -> object:
        return atheris.instrument_imports(include=["pyspark_checkpointer", "yaml"], enable_loader_override=False)


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
