"""The changes that Horovod's source needs, as data, and the code that applies them.

Owns what is changed and why. A patch names one file and one text in it; that text must be there
exactly once, otherwise nothing is guessed and the build stops. `digest` goes into the cache key, so
a wheel built with other patches is never taken.

Example::

    patches = patches_for(gpu=None)
    apply_patches(patches, source_folder)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fittrain.errors import BuildError


@dataclass(frozen=True)
class Patch:
    """One textual change.

    Args:
        path: File, relative to the source folder.
        before: Text that is in the file exactly once.
        after: Text that takes its place.
        reason: Why the build needs it, for people.
    """

    path: str
    before: str
    after: str
    reason: str


CPU_PATCHES: tuple[Patch, ...] = (
    Patch(
        path="horovod/tensorflow/CMakeLists.txt",
        before=(
            'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
        ),
        after="",
        reason=(
            "xla_mpi_ops.cc includes XLA headers that TensorFlow's wheel does not ship. It holds "
            "Horovod's optional XLA operations for GPUs, which fittrain does not call."
        ),
    ),
    Patch(
        path="horovod/tensorflow/CMakeLists.txt",
        before='set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib")',
        after=(
            'set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib"\n'
            "    BUILD_WITH_INSTALL_RPATH TRUE\n"
            '    INSTALL_RPATH "$ENV{FITTRAIN_LIBRARY_PATHS}")'
        ),
        reason=(
            "The library would remember the absolute folder of the MPI library it was built with. "
            "A cached wheel is installed into other environments too, so the search path is made "
            "relative to the wheel's own place."
        ),
    ),
    Patch(
        path="horovod/common/message.h",
        before="#include <string>\n#include <vector>\n",
        after="#include <cstdint>\n#include <string>\n#include <vector>\n",
        reason="GCC 13's <string> no longer brings uint8_t along (Horovod PR 3957).",
    ),
    Patch(
        path="third_party/gloo/gloo/types.h",
        before="#pragma once\n\n#include <iostream>\n",
        after="#pragma once\n\n#include <cstdint>\n#include <iostream>\n",
        reason="Newer GCC's <iostream> no longer brings uint8_t along.",
    ),
)

NCCL_PATCHES: tuple[Patch, ...] = (
    Patch(
        path="horovod/tensorflow/mpi_ops.cc",
        before=(
            "// Forward declaration of AsGpuStreamValue\n"
            "namespace stream_executor {\n"
            "namespace gpu {\n"
            "GpuStreamHandle AsGpuStreamValue(Stream* stream);\n"
            "} // namespace stream_executor\n"
            "} // namespace gpu\n"
            "#if TENSORFLOW_VERSION >= 2011000000\n"
            '#include "tensorflow/compiler/xla/stream_executor/stream.h"\n'
            "#else\n"
            '#include "tensorflow/stream_executor/stream.h"\n'
            "#endif // TENSORFLOW_VERSION >= 2011000000\n"
        ),
        after=(
            '#include "xla/stream_executor/stream.h"\n'
            "namespace stream_executor {\n"
            "namespace gpu {\n"
            "inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {\n"
            "  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n"
            "}\n"
            "} // namespace gpu\n"
            "} // namespace stream_executor\n"
        ),
        reason=(
            "TensorFlow no longer exports AsGpuStreamValue, so the library would build and then "
            "fail to load. The stream's platform handle is the same CUDA stream."
        ),
    ),
    Patch(
        path="horovod/common/ops/cuda/CMakeLists.txt",
        before="set(CMAKE_CUDA_STANDARD 11)\n",
        after="set(CMAKE_CUDA_STANDARD 17)\n",
        reason="GCC 14's headers and CUDA 13's refuse C++11 (Horovod PR 4313).",
    ),
)


def patches_for(gpu: str | None) -> tuple[Patch, ...]:
    """Returns the patches of a build, in the order in which they are applied.

    Args:
        gpu: `"nccl"`, or `None` for a build without GPU operations.
    """
    return CPU_PATCHES + NCCL_PATCHES if gpu == "nccl" else CPU_PATCHES


def digest(patches: Sequence[Patch]) -> str:
    """Returns a short hash that changes with any change of any patch's effect."""
    effects = [[value for key, value in asdict(p).items() if key != "reason"] for p in patches]
    return hashlib.sha256(json.dumps(effects).encode()).hexdigest()[:12]


def apply_patches(patches: Sequence[Patch], source_folder: Path) -> None:
    """Applies all patches to an unpacked source.

    Raises:
        BuildError: A file is missing, or a text is not in it exactly once.
    """
    for patch in patches:
        file = source_folder / patch.path
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise BuildError(
                f"Horovod's source has no readable `{patch.path}` ({error.strerror}), which a "
                "patch must change. Report this with the versions that `fittrain horovod check` "
                "prints."
            ) from error
        file.write_text(_replaced_once(text, patch), encoding="utf-8")


def _replaced_once(text: str, patch: Patch) -> str:
    count = text.count(patch.before)
    if count != 1:
        first_line = patch.before.strip().splitlines()[0]
        raise BuildError(
            f"A patch of `{patch.path}` must match exactly once and matched {count} times (text "
            f"beginning with {first_line!r}). The source is not the one the patch was written "
            "for; nothing was built."
        )
    return text.replace(patch.before, patch.after)
