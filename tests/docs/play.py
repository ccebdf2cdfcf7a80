"""Run programs and commands one after the other, in one process, so that all the programs share one Spark.

The steps come as JSON on standard input: a list of `["python", text]` and `["sh", text]`.
"""

import json
import subprocess
import sys


def main() -> None:
    for language, text in json.load(sys.stdin):
        if language == "python":
            exec(compile(text, "program", "exec"), {"__name__": "__main__"})
        else:
            subprocess.run(["sh", "-ec", text], check=True, timeout=60)


if __name__ == "__main__":
    main()
