"""The leak plugin catches each kind of leak, names it, and leaves clean tests alone.

Each test writes a small suite that leaks on purpose and runs it in a pytest of its own.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Run = Callable[..., pytest.RunResult]

PATIENT_S = 10.0
"""Time to settle for suites in which all that is there does end, on however busy a machine."""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite, given as source, under the plugin with a short time to settle."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run_suite(source: str, settle_s: float = 0.3) -> pytest.RunResult:
        pytester.makeini(f"[pytest]\nleaks_settle_s = {settle_s}\n")
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(
            "-p", "tests.plugins.leaks", "-p", "no:cacheprovider", "--strict-markers", "-rN"
        )

    return run_suite


@pytest.fixture
def segment() -> Iterator[Path]:
    """A name of ours in shared memory, not yet taken, and none that a medium would sweep away."""
    path = Path("/dev/shm") / f"entrepot-leaked-{secrets.token_hex(8)}"
    yield path
    path.unlink(missing_ok=True)


def test_a_leaked_thread_is_named(run: Run) -> None:
    result = run(
        """
        import threading

        def test_leaks():
            threading.Thread(target=threading.Event().wait, name="lost-one", daemon=True).start()

        def test_after_it():
            pass
        """
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*test_leaks left behind, 0.3 s after its end:",
            "*daemon thread 'lost-one', which runs *wait",
        ]
    )


def test_a_leaked_descriptor_is_named(run: Run) -> None:
    result = run(
        """
        import os

        def test_leaks_a_file(tmp_path):
            os.open(tmp_path / "left-open.txt", os.O_CREAT)

        def test_leaks_a_pipe():
            os.pipe()
        """
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.re_match_lines_random(
        [r"  descriptor \d+ -> /.*/left-open\.txt", r"  descriptor \d+ -> pipe:\[\d+\]"]
    )
    assert len(re.findall(r"-> pipe:", result.stdout.str())) == 2


def test_a_leaked_socket_of_zeromq_is_caught(run: Run) -> None:
    result = run(
        """
        import zmq

        kept = []

        def test_the_shared_context_may_stay_but_not_its_sockets():
            kept.append(zmq.Context.instance().socket(zmq.PAIR))

        def test_another_context_may_not():
            kept.append(zmq.Context())
        """
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*but_not_its_sockets left behind*",
            "  descriptor * -> anon_inode:[[]eventfd[]]",
            "close it*",
            "*test_another_context_may_not left behind*",
            "  descriptor * -> anon_inode:[[]eventfd[]]",
            "close it*",
        ],
        consecutive=False,
    )
    assert len(re.findall(r"^  descriptor", result.stdout.str(), re.MULTILINE)) == 2


def test_a_leaked_process_is_named_and_ended(run: Run, tmp_path: Path) -> None:
    result = run(
        f"""
        import pathlib, subprocess, sys

        def test_leaks():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "lost"])
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
            sys.kept = child
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    pid = int((tmp_path / "pid").read_text())
    result.stdout.fnmatch_lines([f"  process {pid}: *python* -c import time; time.sleep(600) lost"])
    assert not Path(f"/proc/{pid}").exists()


def test_looking_at_a_tree_of_processes_that_come_and_go(run: Run) -> None:
    """None of them is there for longer than a look; 26,000 looks met some 200 that went."""
    result = run(
        """
        import subprocess
        from tests.plugins import leaks

        CHURN = "for at in $(seq 1500); do (:; :) & (:) & wait; done"

        def test_looks():
            with subprocess.Popen(["bash", "-c", CHURN]) as tree:
                looks = 0
                while tree.poll() is None:
                    leaks.held()
                    looks += 1
            assert looks > 1000
        """,
        settle_s=PATIENT_S,
    )
    result.assert_outcomes(passed=1)


def test_a_child_that_nobody_waited_for_is_a_leak(run: Run) -> None:
    result = run(
        """
        import os

        def test_leaks():
            if (pid := os.fork()) == 0:
                os._exit(0)
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["  process *: * (it ended, and nobody waited for it)"])


def test_a_leaked_segment_is_named(run: Run, segment: Path) -> None:
    result = run(
        f"""
        import pathlib

        def test_leaks():
            pathlib.Path({str(segment)!r}).touch()
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"  shared memory {segment}"])


OWNER = """
import fcntl, os, sys, time

if os.fork():
    os._exit(0)  # what goes on is an orphan, and so nobody's child in the suite
segment = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
fcntl.flock(segment, fcntl.LOCK_EX)
print(os.getpid(), flush=True)
os.close(1)  # whoever reads our output goes on from here
time.sleep(60)
"""


def test_a_segment_that_another_run_owns_is_not_blamed_on_us(run: Run, segment: Path) -> None:
    result = run(
        f"""
        import pathlib, subprocess, sys

        def test_while_a_stranger_makes_a_segment():
            said = subprocess.check_output([sys.executable, "-c", {OWNER!r}, {str(segment)!r}])
            pathlib.Path("stranger.pid").write_text(said.decode())
        """,
        PATIENT_S,
    )
    os.kill(int(Path("stranger.pid").read_text()), signal.SIGKILL)
    assert segment.exists()
    result.assert_outcomes(passed=1)


def test_what_a_wider_fixture_opened_is_not_blamed_on_its_first_test(run: Run) -> None:
    # The second event has the number of the first, and nothing else to tell it from that.
    result = run(
        """
        import os, threading
        import pytest

        @pytest.fixture(scope="session")
        def end():
            event = threading.Event()
            thread = threading.Thread(target=event.wait)
            thread.start()
            yield event
            event.set()
            thread.join()

        @pytest.fixture(scope="module", params=[1, 2])
        def event(end):
            number = os.eventfd(0)
            yield number
            os.close(number)

        def test_first(event):
            pass

        def test_second(event):
            pass
        """,
        PATIENT_S,
    )
    result.assert_outcomes(passed=4)


def test_what_the_process_of_a_wider_fixture_starts_is_not_blamed_on_the_test(run: Run) -> None:
    result = run(
        """
        import subprocess
        import pytest

        @pytest.fixture(scope="module")
        def shell():
            with subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                yield process
                process.stdin.write(b"kill $!\\nwait\\n")

        def test_starts_a_grandchild(shell):
            shell.stdin.write(b"sleep 60 &\\necho started\\n")
            shell.stdin.flush()
            assert shell.stdout.readline() == b"started\\n"

        def test_is_there_so_that_the_shell_outlives_the_one_before(shell):
            pass
        """,
        PATIENT_S,
    )
    result.assert_outcomes(passed=2)


def test_a_wider_fixture_has_to_close_what_it_opened(run: Run) -> None:
    result = run(
        """
        import os
        import pytest

        @pytest.fixture(scope="class")
        def pipe():
            return os.pipe()

        class TestWithIt:
            def test_first(self, pipe):
                pass

            def test_last(self, pipe):
                pass

        def test_after_it():
            pass
        """
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*test_last left behind*",
            "  descriptor * -> pipe:* (opened by the class-scoped fixture 'pipe')",
        ]
    )


def test_what_ends_in_time_is_no_leak(run: Run) -> None:
    result = run(
        """
        import os, subprocess, threading, time
        import pytest

        def test_a_thread_that_is_about_to_end():
            threading.Thread(target=time.sleep, args=(0.1,)).start()

        class Cycle:
            def __init__(self):
                self.me, self.ends = self, os.pipe()
            def __del__(self):
                for end in self.ends:
                    os.close(end)

        def test_rubbish_that_only_the_collector_finds():
            Cycle()

        @pytest.fixture
        def child():
            with subprocess.Popen(["sleep", "60"]) as process:
                yield process
                process.kill()

        def test_a_process_that_its_fixture_ends(child):
            pass

        def test_nothing():
            pass
        """,
        PATIENT_S,
    )
    result.assert_outcomes(passed=4)


def test_what_libraries_keep_for_the_life_of_the_process_is_no_leak(run: Run) -> None:
    result = run(
        """
        import _thread, multiprocessing, threading
        import zmq

        def test_the_resource_tracker():
            process = multiprocessing.get_context("spawn").Process(target=print)
            process.start()
            process.join()
            process.close()

        def test_the_shared_context_of_zeromq():
            with zmq.Context.instance().socket(zmq.PAIR):
                pass

        def test_the_zero_copy_thread_of_zeromq():
            with zmq.Context() as context, context.socket(zmq.PAIR) as a:
                with context.socket(zmq.PAIR) as b:
                    a.bind("inproc://pair")
                    b.connect("inproc://pair")
                    a.send(bytes(2**20), copy=False)
                    b.recv()

        ready, never = threading.Event(), threading.Event()

        def native():
            threading.current_thread()
            ready.set()
            never.wait()

        def test_a_native_thread_that_called_into_python():
            _thread.start_new_thread(native, ())
            assert ready.wait(5)
        """,
        PATIENT_S,
    )
    result.assert_outcomes(passed=4)


def test_what_is_closed_was_not_a_librarys(run: Run) -> None:
    """Which descriptors are a library's is a guess, which their number and kind allow: what stood
    there for it at first ends with its fixture, and what the library has stays."""
    result = run(
        """
        import select
        import pytest
        import zmq

        @pytest.fixture(scope="session")
        def pollers():
            mine = [select.epoll() for _ in range(2)]  # of the lower numbers
            zmq.Context.instance().socket(zmq.PULL).close()
            yield
            for each in mine:
                each.close()

        def test_first(pollers):
            pass

        def test_last(pollers):
            pass
        """
    )
    result.assert_outcomes(passed=2)


def test_a_failing_test_is_not_examined_and_its_leak_not_carried_over(run: Run) -> None:
    result = run(
        """
        import os

        def test_fails():
            os.pipe()
            assert False

        def test_clean():
            pass
        """
    )
    result.assert_outcomes(passed=1, failed=1)


def test_opting_out_exempts_one_test(run: Run) -> None:
    result = run(
        """
        import os
        import pytest

        @pytest.mark.leaks_ok("a test of what a leak looks like")
        def test_leaks():
            os.pipe()

        def test_leaks_too():
            os.pipe()
        """
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*::test_leaks_too left behind*"])


@pytest.mark.parametrize("arguments", ["", "()", "(' ')", "(reason='by a keyword')"])
def test_opting_out_takes_a_reason(run: Run, arguments: str) -> None:
    result = run(
        f"""
        import pytest

        @pytest.mark.leaks_ok{arguments}
        def test_says_nothing():
            pass
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*::test_says_nothing: say why it may leak*"])
