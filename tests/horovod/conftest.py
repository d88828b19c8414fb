import os
import stat
import sys
import sysconfig
from pathlib import Path

import pytest

from fittrain.horovod.progress import Silent
from fittrain.horovod.wheel_cache import WheelKey


@pytest.fixture
def key():
    return WheelKey(
        horovod="0.28.1",
        patches="0123456789ab",
        tensorflow="tensorflow-cpu 2.21.0",
        python=f"cp{sys.version_info[0]}{sys.version_info[1]}",
        machine="x86_64",
        mpi="Open MPI 5.0.11",
    )


@pytest.fixture
def progress():
    return Silent()


@pytest.fixture
def environment(tmp_path):
    """Variables of a machine with nothing but the system's own programs and no network."""
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_RETRIES": "1",
        # Port 9 (discard) is closed everywhere.
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    }


@pytest.fixture
def add_program(tmp_path):
    """Returns a function that puts a program into the fake machine's PATH."""

    def add(name, text="exit 0", interpreter="/bin/sh"):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / name
        program.write_text(f"#!{interpreter}\n{text}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    return add


@pytest.fixture
def add_package(tmp_path, monkeypatch):
    """Returns a function that makes a package look installed, through real metadata files."""
    # sysconfig loads its data on first use, which must happen while the path is whole.
    sysconfig.get_config_var("EXT_SUFFIX")
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])

    def add(name, version):
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        return site

    return add


@pytest.fixture
def wheel(tmp_path) -> Path:
    file = tmp_path / "horovod-0.28.1+fittrain.0-cp311-cp311-linux_x86_64.whl"
    file.write_bytes(b"wheel" * 1000)
    return file
