import os
import sys
import time

import pytest

from fittrain.errors import BuildError
from fittrain.horovod.commands import run
from fittrain.horovod.progress import Silent

ENVIRONMENT = dict(os.environ)


class Percents(Silent):
    def __init__(self):
        self.seen = []

    def tick(self, percent=None):
        self.seen.append(percent)


def test_output_of_both_streams_and_exit_code_come_back():
    done = run(["sh", "-c", "echo out; echo err >&2; exit 3"], environment=ENVIRONMENT)
    assert (done.exit_code, done.output, done.timed_out) == (3, "out\nerr\n", False)


def test_last_lines_skip_empty_ones():
    done = run(["printf", "one\ntwo\n\nthree\n\n"], environment=ENVIRONMENT)
    assert done.last_lines(2) == "two\nthree"


def test_percent_is_read_from_make_and_never_goes_back():
    percents = Percents()
    text = "echo '[  7%] a'; sleep 0.1; echo '[ 42%] b'; sleep 0.1; echo '[ 40%] c'"
    run(["sh", "-c", text], environment=ENVIRONMENT, progress=percents)
    assert percents.seen[-1] == 42
    assert 7 in percents.seen


def test_silent_program_still_ticks():
    percents = Percents()
    run(["sleep", "1.2"], environment=ENVIRONMENT, progress=percents)
    assert len(percents.seen) >= 2


def test_program_that_is_not_there_is_a_clear_error():
    with pytest.raises(BuildError, match=r"Cannot run `/no/such/program`: No such file"):
        run(["/no/such/program"], environment=ENVIRONMENT)


def test_program_over_its_time_ends_with_its_children(tmp_path):
    pid_file = tmp_path / "pid"
    text = f"sleep 300 & echo $! > {pid_file}; wait"
    began = time.monotonic()
    done = run(["sh", "-c", text], environment=ENVIRONMENT, timeout_seconds=0.5)
    assert done.timed_out
    assert time.monotonic() - began < 10
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def test_interrupt_ends_the_program():
    class Interrupting(Silent):
        def tick(self, percent=None):
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "300"], environment=ENVIRONMENT, progress=Interrupting())
    assert time.monotonic() - began < 10


def test_program_reads_nothing_from_our_terminal():
    program = "import sys; print(repr(sys.stdin.read()))"
    assert run([sys.executable, "-c", program], environment=ENVIRONMENT).output == "''\n"


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
