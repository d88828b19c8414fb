"""Putting a wheel into this Python and taking it out again.

Owns pip's part at the end of a build. pip replaces a package as a whole: it puts the old one back
when the new one cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fittrain.horovod.commands import run
from fittrain.horovod.failures import failure
from fittrain.horovod.progress import Progress, Silent
from fittrain.horovod.requirements import installed
from fittrain.horovod.sources import pip

RUNTIME_PACKAGES = ("cloudpickle", "psutil", "pyyaml", "packaging")


def install_wheel(
    wheel: Path, environment: Mapping[str, str], progress: Progress, log_folder: Path
) -> None:
    """Installs what Horovod needs at run time, then the wheel.

    Raises:
        BuildError: pip fails; Horovod is as it was before.
    """
    missing = [name for name in RUNTIME_PACKAGES if installed(name) is None]
    commands = [["--no-deps", "--force-reinstall", str(wheel)]]
    if missing:
        commands.insert(0, missing)
    for arguments in commands:
        command = [*pip(), "install", "--progress-bar=off", *arguments]
        done = run(command, environment=environment, progress=progress)
        if done.exit_code:
            raise failure("Installing Horovod", done, log_folder)


def uninstall(environment: Mapping[str, str], progress: Progress | None = None) -> None:
    """Removes Horovod, if it is there."""
    command = [*pip(), "uninstall", "--yes", "horovod"]
    run(command, environment=environment, progress=progress or Silent())
