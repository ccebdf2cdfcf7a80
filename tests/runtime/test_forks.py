"""Count the forks of a process, and give each child what is its own."""

from pathlib import Path

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


def test_a_process_is_another_one_even_with_the_id_of_an_older_one() -> None:
    program = """if True:
        import os
        from pyspark_checkpointer import runtime
        from pyspark_checkpointer.runtime import forks
        os.getpid = lambda: 7  # as if each child got the id of its parent
        parent = forks.current
        made = {}
        first = runtime.per_process(made, object)
        assert forks.current is parent and runtime.per_process(made, object) is first
        child = os.fork()
        if child == 0:
            same = forks.current is parent or runtime.per_process(made, object) is first
            again = runtime.per_process(made, object) is runtime.per_process(made, object)
            os._exit(0 if not same and again else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), runtime.per_process(made, object) is first)
    """
    assert run_python(program) == "0 True\n"


def test_the_threads_of_a_child_have_one_session(tmp_path: Path) -> None:
    program = f"""if True:
        import os, threading
        from pyspark_checkpointer import Checkpointer
        client, meet = Checkpointer({str(tmp_path)!r}), threading.Barrier(2)
        child = os.fork()
        if child == 0:
            opened = client._open_session
            def open_both_at_once():
                meet.wait(10)
                return opened()
            client._open_session = open_both_at_once
            found = []
            threads = [threading.Thread(target=lambda: found.append(client.session)) for _ in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            os._exit(0 if len(found) == 2 and found[0] is found[1] is client.session else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(program) == "0\n"


def test_a_child_can_use_memory_whatever_the_threads_of_its_parent_did() -> None:
    program = """if True:
        import os, signal
        from pyspark_checkpointer import Checkpointer
        from pyspark_checkpointer.storage.memory.store import _roots
        client = Checkpointer("memory://forked")
        with client.begin(epoch=7):
            pass
        with _roots["memory://forked"].lock:  # as the loop's thread has it while it lists
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os._exit(client.restore().epoch)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(program) == "7\n"
