"""Which GPU belongs to this rank.

Owns the choice and the call to TensorFlow that makes it; both come before the first operation.

    pin_gpu(launcher.local_rank, launcher.local_size)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fittrain.errors import LaunchError


def choose_gpu(local_rank: int, local_size: int, visible: int, masked: bool = True) -> int | None:
    """Returns the index of this rank's GPU among those it sees.

    Args:
        local_rank: This rank among those on its host.
        local_size: Ranks on this host.
        visible: GPUs that this process sees.
        masked: Whether somebody chose these GPUs for the process (CUDA_VISIBLE_DEVICES). A single
            chosen GPU is private to the rank; a single GPU of a whole host is shared by its ranks.

    Returns:
        None where there is no GPU.

    Raises:
        LaunchError: There are fewer GPUs than ranks on this host.

    Example:
        >>> choose_gpu(local_rank=3, local_size=4, visible=8)
        3
        >>> choose_gpu(local_rank=3, local_size=4, visible=1)
        0
    """
    if visible == 0:
        return None
    if visible >= local_size:
        return local_rank
    if visible == 1 and masked:
        return 0
    raise LaunchError(
        f"Each rank needs a GPU of its own, but local rank {local_rank} of {local_size} ranks on "
        f"this host sees {visible} GPU(s). Start at most {visible} rank(s) on each host, or set "
        "CUDA_VISIBLE_DEVICES= (empty) to train on the CPU."
    )


def pin_gpu(
    local_rank: int, local_size: int, environ: Mapping[str, str] = os.environ
) -> int | None:
    """Shows TensorFlow only this rank's GPU and lets its memory grow. Imports TensorFlow.

    Args:
        local_rank: This rank among those on its host.
        local_size: Ranks on this host.
        environ: The environment, for CUDA_VISIBLE_DEVICES.

    Returns:
        The index of the GPU, or None where there is no GPU.

    Raises:
        LaunchError: There are fewer GPUs than ranks on this host, or TensorFlow already uses them.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    index = choose_gpu(local_rank, local_size, len(gpus), "CUDA_VISIBLE_DEVICES" in environ)
    if index is None:
        return None
    try:
        tf.config.set_visible_devices(gpus[index], "GPU")
        # Without this the first rank takes all memory, and other programs on the GPU get none.
        tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as error:
        raise LaunchError(
            f"GPU {index} cannot be given to local rank {local_rank}: TensorFlow already uses the "
            f"GPUs ({error}). Call `fittrain.init()` before the first model, tensor or variable."
        ) from error
    return index
