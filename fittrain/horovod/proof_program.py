"""What each rank of the proof runs: one all-reduce of known answer.

The text of this file is handed to `python -c` on two ranks, so it imports nothing of fittrain and
does not run on import. Rank r contributes r + 1 times a ramp; the sum over two ranks is three times
the ramp, exactly, in float32. The GPU path is taken where each rank has a GPU of its own.
"""

from __future__ import annotations

import json


def prove() -> dict[str, object]:
    """Runs the all-reduce and returns what this rank saw."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    device = "CPU:0"
    if hvd.nccl_built() and len(gpus) >= hvd.local_size():
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
        device = "GPU:0"
    with tf.device(device):
        ramp = tf.range(1000, dtype=tf.float32)
        total = hvd.allreduce(ramp * float(hvd.rank() + 1), op=hvd.Sum, name="fittrain_proof")
        wrong = int(tf.math.count_nonzero(total != 3.0 * ramp))
    seen = {"rank": hvd.rank(), "size": hvd.size(), "wrong": wrong, "device": device}
    seen["nccl"] = bool(hvd.nccl_built())
    hvd.shutdown()
    return seen


if __name__ == "__main__":
    print("fittrain-proof " + json.dumps(prove()), flush=True)
