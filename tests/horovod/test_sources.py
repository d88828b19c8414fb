import io
import tarfile

import pytest

from fittrain.errors import BuildError
from fittrain.horovod import sources
from fittrain.horovod.sources import (
    fetch_sdist,
    install_build_tools,
    pip,
    require_official,
    unpack,
)


@pytest.fixture
def archive(tmp_path):
    """A source archive that has the right name and is not the official one."""
    file = tmp_path / "index" / f"horovod-{sources.HOROVOD_VERSION}.tar.gz"
    file.parent.mkdir()
    with tarfile.open(file, "w:gz") as tar:
        text = b"raise SystemExit('this must never run')\n"
        member = tarfile.TarInfo(f"horovod-{sources.HOROVOD_VERSION}/setup.py")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    return file


def test_no_network_is_said_for_the_tools(tmp_path, environment, progress):
    with pytest.raises(BuildError, match="package index cannot be reached"):
        install_build_tools(tmp_path / "tools", environment, progress, tmp_path / "logs")
    assert (tmp_path / "logs" / "last-failure.log").exists()


def test_no_network_is_said_for_the_source(tmp_path, environment, progress):
    with pytest.raises(BuildError, match=r"Fetching Horovod 0.28.1 failed.*cannot be reached"):
        fetch_sdist(tmp_path, environment, progress, tmp_path)


def test_index_without_horovod_is_said(tmp_path, environment, progress):
    (tmp_path / "empty").mkdir()
    offline = {**environment, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "empty")}
    with pytest.raises(BuildError, match="or does not have what is needed"):
        fetch_sdist(tmp_path, offline, progress, tmp_path)


def test_source_with_another_hash_is_refused_and_never_run(
    tmp_path, environment, progress, archive
):
    offline = {**environment, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(archive.parent)}
    with pytest.raises(BuildError, match="SHA-256 differs"):
        fetch_sdist(tmp_path, offline, progress, tmp_path)
    assert "must never run" not in (tmp_path / "last-failure.log").read_text()


def test_hash_is_checked_again_after_pip(tmp_path, environment, progress, archive, monkeypatch):
    monkeypatch.setattr(sources, "run", _copying(archive, tmp_path))
    with pytest.raises(BuildError, match="is not the official Horovod 0.28.1"):
        fetch_sdist(tmp_path, environment, progress, tmp_path)


def _copying(archive, folder):
    from fittrain.horovod.commands import Completed

    def run(command, **settings):
        (folder / archive.name).write_bytes(archive.read_bytes())
        return Completed(0, "")

    return run


def test_truncated_source_is_refused(archive):
    archive.write_bytes(archive.read_bytes()[:50])
    with pytest.raises(BuildError, match="damaged or was changed; nothing was built"):
        require_official(archive)


def test_unpacking_gives_the_source_folder(archive, tmp_path):
    assert (unpack(archive, tmp_path) / "setup.py").exists()


def test_archive_that_does_not_unpack_is_said(archive, tmp_path):
    archive.write_bytes(b"not an archive")
    with pytest.raises(BuildError, match="Unpacking Horovod's source failed"):
        unpack(archive, tmp_path)


def test_pip_is_this_pythons():
    assert pip()[1:] == ["-m", "pip"]
