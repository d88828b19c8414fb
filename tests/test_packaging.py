"""What people get from the sdist and the wheel is what lies in the folders."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
# Where each folder's files belong in an installed copy.
FOLDERS = {"fittrain": "fittrain", "callbacks": "fittrain/callbacks"}


def shipped_files() -> set[str]:
    return {
        f"{target}/{path.relative_to(CHECKOUT / folder).as_posix()}"
        for folder, target in FOLDERS.items()
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def run(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A build leaves `build/` and `*.egg-info` beside its sources, so it gets a copy of them.
    source = tmp_path_factory.mktemp("source") / "checkout"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "runs")
    shutil.copytree(CHECKOUT, source, ignore=unwanted)
    run("-c", "from setuptools import build_meta; build_meta.build_sdist('dist')", cwd=source)
    (archive,) = (source / "dist").iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*pip, "--wheel-dir", folder, sdist, cwd=folder)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--target", folder, wheel, cwd=folder)
    return folder


def test_setup_lists_every_package_folder():
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    found = [
        path.rpartition("/")[0].replace("/", ".")
        for path in shipped_files()
        if path.endswith("/__init__.py")
    ]
    assert sorted(listed) == sorted(found)


def test_sdist_keeps_callbacks_at_its_top(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert "callbacks/__init__.py" in names
    assert {"Makefile", "tests/conftest.py", "pyproject.toml"} <= names


def test_wheel_holds_every_file_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped_files()
    assert "fittrain/py.typed" in names


def test_installed_copy_works_outside_the_checkout(site, tmp_path):
    code = "import fittrain.callbacks as c; from fittrain.cli import main; print(c.__file__)"
    output = run("-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert Path(output.strip()) == site / "fittrain/callbacks/__init__.py"
