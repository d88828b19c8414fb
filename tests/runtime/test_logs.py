"""Who says what, and where it is written."""

import contextlib
import logging
import re
import socket
import subprocess
import sys

import pytest

from fittrain.errors import ArgumentError
from fittrain.runtime import logs

LOGGER = logging.getLogger("fittrain.trainer")
PREFIX = f"[rank 1 {socket.gethostname()}] "


@pytest.fixture(autouse=True)
def _clean():
    yield
    logs.remove()


@contextlib.contextmanager
def handler_of_the_user(handler):
    handler.setFormatter(logging.Formatter("USER %(message)s"))
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)
    handler.close()


def say_all():
    LOGGER.debug("detail")
    LOGGER.info("Epoch %s", 1)
    LOGGER.warning("slow")
    LOGGER.error("broken")


def test_rank_0_speaks_plainly(capsys):
    logs.configure(rank=0, size=2)
    say_all()
    assert capsys.readouterr() == ("", "Epoch 1\nWARNING: slow\nERROR: broken\n")


def test_other_ranks_only_warn_and_say_who_they_are(capsys):
    logs.configure(rank=1, size=2)
    say_all()
    assert capsys.readouterr().err == f"{PREFIX}WARNING: slow\n{PREFIX}ERROR: broken\n"


def test_the_file_holds_everything_with_time_and_level(tmp_path):
    logs.configure(rank=3, size=4, run_dir=tmp_path)
    say_all()
    lines = (tmp_path / "logs" / "rank-003.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines][:2] == [
        "DEBUG fittrain.trainer: detail",
        "INFO fittrain.trainer: Epoch 1",
    ]
    assert len(lines) == 4
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d ", lines[0])


def test_the_file_is_appended_to(tmp_path):
    for text in ("first", "second"):
        logs.configure(rank=0, size=1, run_dir=tmp_path)
        LOGGER.info(text)
        logs.remove()
    assert logs.log_path(tmp_path, 0).read_text().count("\n") == 2


def test_a_second_call_replaces_our_handlers(tmp_path, capsys):
    logs.configure(rank=0, size=1, run_dir=tmp_path / "a")
    logs.configure(rank=0, size=1, run_dir=tmp_path / "b")
    LOGGER.info("once")
    assert capsys.readouterr().err == "once\n"
    assert logs.log_path(tmp_path / "a", 0).read_text() == ""
    assert logs.log_path(tmp_path / "b", 0).read_text().count("once") == 1


def test_handlers_of_the_user_stay():
    handler = logging.NullHandler()
    logger = logging.getLogger("fittrain")
    logger.addHandler(handler)
    logs.configure(rank=0, size=1)
    logs.configure(rank=0, size=1)
    logs.remove()
    assert logger.handlers == [handler]
    logger.removeHandler(handler)


def test_remove_leaves_the_logger_as_it_was():
    logger = logging.getLogger("fittrain")
    logs.configure(rank=0, size=1)
    logs.remove()
    assert (logger.level, logger.propagate, logger.handlers) == (logging.NOTSET, True, [])


def test_a_level_of_the_user_stays(capsys):
    logger = logging.getLogger("fittrain")
    logger.setLevel(logging.ERROR)
    logs.configure(rank=0, size=1)
    say_all()
    logs.remove()
    assert logger.level == logging.ERROR
    logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err == "ERROR: broken\n"


def test_a_console_handler_of_the_user_gives_no_double_lines(capsys):
    logs.configure(rank=0, size=1)
    with handler_of_the_user(logging.StreamHandler(sys.stderr)):
        say_all()
    assert capsys.readouterr().err == "Epoch 1\nUSER slow\nUSER broken\n"


def test_a_file_handler_of_the_user_gets_what_its_level_asks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "level", logging.INFO)
    logs.configure(rank=0, size=1, run_dir=tmp_path)
    with handler_of_the_user(logging.FileHandler(tmp_path / "user.log")):
        say_all()
    assert (tmp_path / "user.log").read_text() == "USER Epoch 1\nUSER slow\nUSER broken\n"
    assert capsys.readouterr().err.startswith("Epoch 1\n")


def test_pytest_still_captures(caplog):
    logs.configure(rank=0, size=1)
    say_all()
    with caplog.at_level(logging.DEBUG, logger="fittrain"):
        LOGGER.debug("asked for")
    assert caplog.messages == ["slow", "broken", "asked for"]


def test_a_logger_cut_off_by_the_user_is_not_relayed(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("fittrain"), "propagate", False)
    logs.configure(rank=0, size=1)
    LOGGER.warning("slow")
    logs.remove()
    assert caplog.messages == []
    assert not logging.getLogger("fittrain").propagate


def test_a_run_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="`run_dir` must be a folder .* Not a directory"):
        logs.configure(rank=0, size=1, run_dir=tmp_path / "file")


def test_importing_installs_nothing():
    code = (
        "import logging, fittrain.runtime.logs\n"
        "assert not logging.getLogger().handlers + logging.getLogger('fittrain').handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_of_the_package_loads_tensorflow():
    code = (
        "import pkgutil, importlib, sys, fittrain.runtime as package\n"
        "for each in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module('fittrain.runtime.' + each.name)\n"
        "assert not {'tensorflow', 'keras', 'mpi4py', 'horovod'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
