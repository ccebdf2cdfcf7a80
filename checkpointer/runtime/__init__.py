"""Run work on threads and the event loop.

There is one event loop for everything that talks to a store, and there are threads beside it.

Each module has one job. Objects with threads, locks or tasks reset themselves in a forked child, which starts with no
loop and no threads.

* `event_loop.py`: the loop, and the ways to it from other threads and loops;
* `pools.py`: threads that wait for files, and threads that keep processors busy;
* `user_functions.py`: calls of users' functions, which nothing waits for, and of their log handlers;
* `process_exit.py`: what is called and finished when the process ends;
* `forks.py`: which process this is, and how often it was forked;
* `host.py`: clock, randomness and executor, as the core has them handed in;
* `interpreter.py`: the refusal of an interpreter without a global lock;
* `not_picklable.py`, `processes.py`: what must stay in this process, and what the system knows of others.
"""

from pyspark_checkpointer.runtime import forks
from pyspark_checkpointer.runtime.event_loop import bridge, loop, on_loop, run_sync, submit
from pyspark_checkpointer.runtime.forks import fork_count, per_process
from pyspark_checkpointer.runtime.interpreter import require_gil
from pyspark_checkpointer.runtime.pools import FILE_THREADS, in_thread, on_cpu, set_when_cancelled
from pyspark_checkpointer.runtime.process_exit import at_exit, cancel_at_exit, finish_at_exit, forget_outcome
from pyspark_checkpointer.runtime.user_functions import call_alone, call_later

require_gil()

__all__ = [
    "FILE_THREADS",
    "at_exit",
    "bridge",
    "call_alone",
    "call_later",
    "cancel_at_exit",
    "finish_at_exit",
    "forget_outcome",
    "fork_count",
    "forks",
    "in_thread",
    "loop",
    "on_cpu",
    "on_loop",
    "per_process",
    "run_sync",
    "set_when_cancelled",
    "submit",
]
