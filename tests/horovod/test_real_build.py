"""The real thing: minutes of compilation. Run with `pytest -m slow tests/horovod`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def fittrain(*arguments, **variables):
    command = [sys.executable, "-m", "fittrain", "horovod", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_build_from_nothing_then_again_then_check(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    first = fittrain("build", "--force", **cache)
    assert first.returncode == 0, first.stderr
    assert "gave the known answer" in first.stdout
    second = fittrain("build", **cache)
    assert second.returncode == 0, second.stderr
    assert "already installed" in second.stdout
    checked = fittrain("check")
    assert checked.returncode == 0, checked.stderr
    assert "Gloo         yes" in checked.stdout
