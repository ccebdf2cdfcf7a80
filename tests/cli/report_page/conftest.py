"""Reports on real stores."""

import random
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.report_page.gather import make_report
from pyspark_checkpointer.cli.report_page.model import Report

HOSTILE = "<img src=x onerror=document.title='owned'>"
SCRIPT = "</script></style><script>document.title='owned'</script>"


@pytest.fixture(scope="session")
def hostile_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve checkpoints of operators of every size, a savepoint, garbage, a prepared one, and names that bite."""
    root, draw = tmp_path_factory.mktemp("report") / "root", random.Random(0)
    with Checkpointer(root) as ck:
        for number in range(12):
            with ck.begin(epoch=40 + number) as cp:
                for partition in range(6):
                    if number % 5 == 0:
                        cp.snapshot("totals", partition, draw.randbytes(9000 if partition == 0 else 600))
                    elif draw.random() < 0.5:
                        cp.delta("totals", partition, draw.randbytes(200))
                cp.snapshot(HOSTILE, 0, b"%d" % number)
                cp.snapshot("a-name-that-somebody-typed-on-a-friday-and-that-never-seems-to-end" * 2, 0, b"")
                cp.properties.update({SCRIPT: SCRIPT, "long": "word" * 5000})
                cp.positions[HOSTILE] = {"0": "1031"}
                cp.watermark = SCRIPT
            if number == 6:
                ck.savepoint(HOSTILE)
        cp = ck.begin()
        cp.snapshot("totals", 0, b"garbage" * 100)
        cp.prepare().abort()
        cp = ck.begin(epoch=52)
        cp.snapshot("totals", 0, b"prepared")
        cp.prepare()
    return root


def report_on(root: Path, **options: object) -> Report:
    with Checkpointer(root) as ck:
        return make_report(ck, **options)  # type: ignore[arg-type]
