"""Fetching what a build consumes: Horovod's source and the build tools.

Owns the pinned version and its SHA-256. pip does the fetching, so its settings (index, mirror,
proxy, local folder) count here as anywhere else; the hash is checked by pip and once more by us.
The build tools go into a folder of their own: the user's environment gains none of them.

Example::

    install_build_tools(tools, environment, progress)
    sdist = fetch_sdist(downloads, environment, progress)
    source = unpack(sdist, scratch)
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from fittrain.errors import BuildError
from fittrain.horovod.commands import run
from fittrain.horovod.failures import failure, os_failure
from fittrain.horovod.progress import Progress
from fittrain.horovod.wheel_cache import file_digest

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# What Horovod's setup.py runs with and asks for; setuptools from 70.1 builds wheels by itself.
BUILD_TOOLS = (
    "setuptools>=70.1",
    "wheel",
    "packaging",
    "cmake>=3.26,<5",
    "cloudpickle",
    "psutil",
    "pyyaml",
)


def install_build_tools(
    folder: Path, environment: Mapping[str, str], progress: Progress, log_folder: Path
) -> None:
    """Installs the build tools into a folder of their own.

    Raises:
        BuildError: pip cannot fetch or write them.
    """
    command: list[str | Path] = [
        *pip(),
        "install",
        "--progress-bar=off",
        "--target",
        folder,
        *BUILD_TOOLS,
    ]
    done = run(command, environment=environment, progress=progress)
    if done.exit_code:
        raise failure("Fetching the build tools (cmake, setuptools, ...)", done, log_folder)


def fetch_sdist(
    folder: Path, environment: Mapping[str, str], progress: Progress, log_folder: Path
) -> Path:
    """Fetches Horovod's source archive and checks its SHA-256.

    Args:
        folder: Where it goes; exists.
        environment: Variables that make the build tools visible: pip runs the archive's setup.py
            to read its name and version.
        progress: Listener.
        log_folder: Folder for pip's output if it fails.

    Raises:
        BuildError: It cannot be fetched, or is not the official one.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n")
    command: list[str | Path] = [
        *pip(), "download", "--progress-bar=off", "--no-deps", "--no-binary", "horovod",
        "--no-build-isolation", "--use-pep517", "--require-hashes",
        "--dest", folder, "--requirement", wanted,
    ]  # fmt: skip
    done = run(command, environment=environment, progress=progress)
    if done.exit_code:
        raise failure(f"Fetching Horovod {HOROVOD_VERSION}", done, log_folder)
    archives = sorted(folder.glob("horovod-*.tar.gz"))
    if len(archives) != 1:
        raise failure("Fetching Horovod (pip left no source archive)", done, log_folder)
    require_official(archives[0])
    return archives[0]


def require_official(archive: Path) -> None:
    """Checks that an archive is the official release, byte for byte.

    Raises:
        BuildError: It is not.
    """
    found = file_digest(archive)
    if found != SDIST_SHA256:
        raise BuildError(
            f"`{archive.name}` is not the official Horovod {HOROVOD_VERSION}: SHA-256 is "
            f"{found[:16]}..., expected {SDIST_SHA256[:16]}.... It is damaged or was changed; "
            "nothing was built."
        )


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks a checked archive and returns the source folder.

    Raises:
        BuildError: The archive or the disk does not allow it.
    """
    try:
        with tarfile.open(archive) as tar:
            # Python's safe filter came with 3.12 and late 3.10 and 3.11; the bytes are checked
            # either way.
            options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(folder, **options)  # type: ignore[arg-type]
    except OSError as error:
        raise os_failure("Unpacking Horovod's source", error) from error
    except tarfile.TarError as error:
        raise BuildError(f"Unpacking Horovod's source failed: {error}.") from error
    return folder / f"horovod-{HOROVOD_VERSION}"


def pip() -> list[str]:
    """Returns the command that is this Python's pip."""
    return [sys.executable, "-m", "pip"]
