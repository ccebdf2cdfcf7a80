"""How often a process was forked."""

from tests.programs import run_python


def test_a_fork_is_counted_by_the_parent_and_a_child_counts_on() -> None:
    program = """if True:
        import os
        from pyspark_checkpointer.runtime import fork_count
        seen = [fork_count()]
        for _ in range(2):
            child = os.fork()
            if child == 0:
                os._exit(10 + fork_count())
            seen.append((fork_count(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        print(seen)
    """
    assert run_python(program) == "[0, (1, 10), (2, 11)]\n"
