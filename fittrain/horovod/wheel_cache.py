"""The wheels that were built, one for each combination of versions.

Owns the cache folder (`$XDG_CACHE_HOME/fittrain/horovod`, else `~/.cache/...`) and its key. An
entry is a folder made under another name and renamed into place, so there is never half an entry::

    cp311-fittrain-3f2a9c0d1b7e/
        horovod-0.28.1+fittrain.3f2a9c0d1b7e-cp311-cp311-linux_x86_64.whl
        entry.json          the key in words, and the wheel's SHA-256
        proved              there once a 2-rank job gave the known answer

The key's digest is also the wheel's local version, so the installed package says which key it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from fittrain.horovod.failures import os_failure


@dataclass(frozen=True)
class WheelKey:
    """Everything that makes one wheel different from another.

    Args:
        horovod: Version of the source.
        patches: Digest of the patches.
        tensorflow: Distribution and version, such as "tensorflow-cpu 2.21.0".
        python: Interpreter tag, such as "cp311".
        machine: Processor family, such as "x86_64".
        mpi: MPI library and version, such as "Open MPI 5.0.11".
        gpu: GPU operations with their versions; "none" without.
    """

    horovod: str
    patches: str
    tensorflow: str
    python: str
    machine: str
    mpi: str
    gpu: str = "none"

    @property
    def digest(self) -> str:
        """Short hash of all fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def local_version(self) -> str:
        """What follows the `+` in the wheel's version."""
        return f"fittrain.{self.digest}"

    @property
    def version(self) -> str:
        """The wheel's whole version."""
        return f"{self.horovod}+{self.local_version}"


def cache_folder() -> Path:
    """Returns the folder of the cache, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "fittrain" / "horovod"


class WheelCache:
    """Finds, stores and drops wheels.

    Args:
        folder: Where the entries are; `None` means `cache_folder()`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def find(self, key: WheelKey) -> Path | None:
        """Returns the key's wheel, or `None` if there is none or it is damaged."""
        entry = self._entry(key)
        try:
            described = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
            wheel = entry / str(described["wheel"])
            return wheel if file_digest(wheel) == described["sha256"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, wheel: Path, key: WheelKey) -> Path:
        """Puts a wheel into the cache and returns its place there.

        Raises:
            BuildError: The folder cannot be written or the disk is full; the cache is as before.
        """
        entry = self._entry(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=self.folder))
            try:
                _fill(new, wheel, key)
                _put_in_place(new, entry)
            finally:
                shutil.rmtree(new, ignore_errors=True)
        except OSError as error:
            raise os_failure(f"Storing the wheel in `{self.folder}`", error) from error
        return entry / wheel.name

    def drop(self, key: WheelKey) -> None:
        """Removes the key's entry, if any."""
        shutil.rmtree(self._entry(key), ignore_errors=True)

    def is_proved(self, key: WheelKey) -> bool:
        """Whether a 2-rank job gave the known answer with this wheel."""
        return (self._entry(key) / "proved").exists()

    def mark_proved(self, key: WheelKey) -> None:
        """Remembers that the wheel was proved; without room, the proof is run again next time."""
        with contextlib.suppress(OSError):
            (self._entry(key) / "proved").touch()

    def _entry(self, key: WheelKey) -> Path:
        return self.folder / f"{key.python}-{key.local_version.replace('.', '-')}"


def file_digest(file: Path) -> str:
    """Returns a file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _fill(folder: Path, wheel: Path, key: WheelKey) -> None:
    copy = folder / wheel.name
    shutil.copyfile(wheel, copy)
    described = {"wheel": wheel.name, "sha256": file_digest(wheel), "key": asdict(key)}
    text = json.dumps(described, indent=2) + "\n"
    (folder / "entry.json").write_text(text, encoding="utf-8")
    for file in (copy, folder / "entry.json"):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())


def _put_in_place(new: Path, entry: Path) -> None:
    """Renames `new` to `entry`; an older entry steps aside first, since rename needs the place."""
    aside = new.with_name(f"{new.name}.old")
    with contextlib.suppress(FileNotFoundError):
        os.rename(entry, aside)
    os.rename(new, entry)
    shutil.rmtree(aside, ignore_errors=True)
