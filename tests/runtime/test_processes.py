"""State and start of other processes."""

import os
import signal
import subprocess
import sys

from pyspark_checkpointer.runtime.processes import read_process_state, read_start


def test_a_process_is_told_from_a_stopped_one_and_from_a_missing_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            assert read_process_state(child.pid) in "RSD"
            assert int(read_start(child.pid)) >= int(read_start(os.getpid()))
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            assert read_process_state(child.pid) == "T"
        finally:
            child.kill()
    assert read_process_state(child.pid) == read_start(child.pid) == ""
