"""Functions that are called, and work that is finished, when the process ends."""

import re
from pathlib import Path

from pyspark_checkpointer import runtime
from tests.programs import run_python


def test_only_the_runtime_registers_what_is_called_at_the_end() -> None:
    """Its `at_exit` also works where the interpreter is already ending."""
    package = Path(runtime.__file__).parents[1]
    own = re.compile(r"import atexit|atexit\.register|_register_atexit")
    found = [path.relative_to(package) for path in package.rglob("*.py") if own.search(path.read_text("utf-8"))]
    assert [str(path) for path in found] == ["runtime/process_exit.py"]


def test_the_package_can_be_imported_while_the_interpreter_ends() -> None:
    program = """if True:
        import atexit, concurrent.futures.thread  # which itself refuses to be imported at the end
        def last():
            import pyspark_checkpointer.consumers.journal
            from pyspark_checkpointer.runtime import process_exit
            assert process_exit._unfinished.exiting, "nobody would wait for what is handed over now"
            print("imported")
        atexit.register(last)
    """
    assert run_python(program) == "imported\n"


def test_what_is_called_at_the_end_is_called_in_its_order() -> None:
    program = """if True:
        import atexit
        from pyspark_checkpointer import runtime
        atexit.register(lambda: print("a handler"))
        assert runtime.at_exit(lambda: print("at the end"))
        assert runtime.at_exit(lambda: print("while threads work", runtime.run_sync(runtime.on_cpu(int))),
            while_threads_work=True)
    """
    assert run_python(program).splitlines() == ["while threads work 0", "at the end", "a handler"]
