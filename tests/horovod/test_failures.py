import errno

import pytest

from fittrain.horovod.commands import Completed
from fittrain.horovod.failures import failure, os_failure


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "The disk is full"),
        ("fatal error: error writing to /tmp/cc.s: No space left on device", "The disk is full"),
        ("cp: write error: Disk quota exceeded", "The disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE", "SHA-256 differs"),
        ("WARNING: Retrying ... NewConnectionError('...')", "cannot be reached"),
        ("Temporary failure in name resolution", "cannot be reached"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "does not have"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "`--jobs 1`"),
        ("error: [Errno 13] Permission denied: '/usr/lib'", "cannot be written"),
        ("something else", "exit code 2"),
    ],
)
def test_output_becomes_cause_and_remedy(output, cause):
    message = str(failure("Compiling Horovod", Completed(2, output)))
    assert message.startswith("Compiling Horovod failed. ")
    assert cause in message


def test_time_over_is_said():
    assert "took too long" in str(failure("The proof", Completed(-9, "", timed_out=True)))


def test_first_line_with_an_error_is_shown():
    output = "compiling a\na.cc:3: error: expected ;\nmake: *** [a.o] Error 1\n"
    assert "a.cc:3: error: expected ;" in str(failure("Compiling", Completed(2, output)))


def test_whole_output_is_kept(tmp_path):
    message = str(failure("Compiling", Completed(2, "line\n"), tmp_path / "logs"))
    assert (tmp_path / "logs" / "last-failure.log").read_text() == "line\n"
    assert str(tmp_path / "logs" / "last-failure.log") in message


def test_log_that_cannot_be_written_does_not_hide_the_failure(tmp_path):
    (tmp_path / "file").write_text("")
    message = str(failure("Compiling", Completed(2, "line"), tmp_path / "file" / "logs"))
    assert message.startswith("Compiling failed.")
    assert "Whole output" not in message


def test_full_disk_in_our_own_file_operation_is_recognised():
    error = OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
    assert "The disk is full" in str(os_failure("Unpacking", error))
