import json
import os
import sys

import pytest

from fittrain.comm.base import on_all_ranks
from fittrain.errors import ArgumentError, PeerError
from fittrain.supervise import Supervisor, is_peer_failure
from fittrain.testing import RecordingCommunicator


class HorovodInternalError(RuntimeError):
    pass


@pytest.fixture
def no_waiting(monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    return waited


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PeerError("rank 1 left"), True),
        (RuntimeError("Horovod has been shut down. This was caused by"), True),
        (HorovodInternalError("ncclCommAbort"), True),
        (ArgumentError("Horovod has been shut down"), False),
        (ValueError("boom"), False),
    ],
)
def test_errors_that_only_say_that_a_peer_is_gone_are_told_apart(error, expected):
    assert is_peer_failure(error) is expected


def test_an_error_in_a_loop_is_recorded_and_ends_the_job(tmp_path, no_waiting):
    communicator = RecordingCommunicator(rank=1, size=2)
    supervisor = Supervisor(communicator, tmp_path)
    supervisor.position = {"epoch": 3, "update": 12}
    with pytest.raises(ValueError, match="boom"), supervisor.guard():
        raise ValueError("boom")
    report = json.loads((tmp_path / "errors" / "rank-001.json").read_text())
    assert (report["type"], report["epoch"], report["update"]) == ("ValueError", 3, 12)
    assert report["primary"] is True
    assert "test_supervise.py" in report["traceback"]
    assert communicator.calls == [("end_job", 1)]
    assert no_waiting == []


@pytest.mark.parametrize(("code", "calls"), [(3, [3]), ("text", [1]), (0, []), (None, [])])
def test_sys_exit_in_a_loop_ends_the_job_with_its_code(code, calls):
    communicator = RecordingCommunicator()
    with pytest.raises(SystemExit), Supervisor(communicator).guard():
        sys.exit(code)
    assert communicator.calls == [("end_job", call) for call in calls]


def test_a_rank_that_a_peer_failed_waits_for_that_peers_report(no_waiting):
    with pytest.raises(PeerError), Supervisor(RecordingCommunicator()).guard():
        raise PeerError("rank 1 left")
    assert len(no_waiting) == 1


@pytest.mark.parametrize(("rank", "waits"), [(0, 0), (1, 1)])
def test_an_error_of_all_ranks_is_told_by_rank_0(rank, waits, no_waiting):
    supervisor = Supervisor(RecordingCommunicator(rank))
    with pytest.raises(ArgumentError), supervisor.guard():
        raise on_all_ranks(ArgumentError("x"))
    assert len(no_waiting) == waits


def test_a_report_that_cannot_be_written_does_not_hide_the_error(tmp_path):
    (tmp_path / "file").write_text("")
    supervisor = Supervisor(RecordingCommunicator(), tmp_path / "file")
    with pytest.raises(ValueError, match="boom"), supervisor.guard():
        raise ValueError("boom")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_an_error_of_a_forked_child_in_a_loop_is_its_own(tmp_path):
    communicator = RecordingCommunicator()
    supervisor = Supervisor(communicator, tmp_path)
    child = os.fork()
    if child == 0:
        try:
            with supervisor.guard():
                raise ValueError("boom")
        except ValueError:
            os._exit(len(communicator.calls))
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(tmp_path.iterdir()) == []
