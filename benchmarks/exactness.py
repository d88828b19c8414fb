"""What exactness costs in a step: weights, control word and the test for finite gradients.

    python benchmarks/exactness.py [--rounds 15]

The CNN of 1.2 M weights takes steps of 64 rows in one process of one thread, with and without each
part; the exchange is with itself, so that nothing but the parts differs. Variants take turns within
a round, and medians of ratios within rounds are printed. Below, the single operations on one flat
tensor of the CNN's size.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
os.environ |= {**ONE_THREAD, "TF_CPP_MIN_LOG_LEVEL": "2"}

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from _models import WORKLOADS, loss_of  # noqa: E402
from fittrain import fused_updates  # noqa: E402
from fittrain.comm.flat import reduce_weighted, split_like  # noqa: E402
from fittrain.comm.local import LocalCommunicator  # noqa: E402

STEPS, REPEATS = 4, 40
Program = Callable[[], object]
Exchange = Callable[[list[tf.Tensor], tf.Tensor], tuple[list[tf.Tensor], tf.Tensor]]


def repeated(times: int, one: Callable[[], tf.Tensor]) -> Program:
    """A program that does `one` several times in one call, each after the last."""

    def body(i, last):
        with tf.control_dependencies([last]):
            return i + 1, tf.cast(one(), tf.float32)

    return tf.function(
        lambda: tf.while_loop(
            lambda i, _: i < times, body, [tf.constant(0), 0.0], parallel_iterations=1
        )[1],
        autograph=False,
    )


def bare(gradients, weight):
    """One flat tensor, as every exchange needs; the plain mean over equal parts."""
    flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
    return split_like(flat, gradients), tf.constant(0.0)


class WithItself(LocalCommunicator):
    """Exchanges with itself, as flat tensors, and tests what it gets."""

    def __init__(self, test=lambda flat: True):
        super().__init__()
        self.test, self.tested = test, True

    def all_reduce(self, flat, name="gradients"):
        self.tested = self.test(flat)
        return flat


def weighted(gradients, weight):
    means, _, (stop,) = reduce_weighted(WithItself(), gradients, weight, [0.0])
    return means, stop


def weighted_and_tested(test):
    def exchange(gradients, weight):
        communicator = WithItself(test)
        means, _, (stop,) = reduce_weighted(communicator, gradients, weight, [0.0])
        return means, stop + tf.where(communicator.tested, 0.0, 1.0)

    return exchange


def step_program(exchange: Exchange) -> Program:
    workload = WORKLOADS["cnn"]
    keras.utils.set_random_seed(1)
    model, optimizer = workload.build(), workload.optimizer()
    variables = model.trainable_variables
    optimizer.build(variables)
    loss_of_batch = loss_of(workload)
    x, y = (tf.constant(part[: workload.batch]) for part in workload.data())
    rows = tf.Variable(float(workload.batch))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of_batch(y, model(x, training=True)))
        means, stop = exchange(tape.gradient(loss, variables), rows)
        fused_updates.apply(optimizer, means, variables)
        return stop

    return repeated(STEPS, step)


def by_elements(flat):
    return tf.reduce_all(tf.math.is_finite(flat))


def by_zeros(flat):
    return tf.math.is_finite(tf.reduce_sum(flat * 0.0))


def by_sum(flat):
    # A sum of finite numbers can overflow; whatever it says, infinity and NaN never get lost in it.
    finite = tf.math.is_finite(tf.reduce_sum(flat))
    return tf.cond(finite, lambda: True, lambda: by_elements(flat))


def by_squares(flat):
    column = tf.reshape(flat, [-1, 1])
    finite = tf.math.is_finite(tf.matmul(column, column, transpose_a=True)[0, 0])
    return tf.cond(finite, lambda: True, lambda: by_elements(flat))


def by_summary(flat):
    health = tf.raw_ops.DebugNumericSummaryV2(
        input=flat, output_dtype=tf.float32, tensor_debug_mode=2
    )
    return tf.equal(tf.reshape(health[1], []), 0.0)


def single_operations(size: int) -> dict[str, Program]:
    generator = np.random.default_rng(0)
    flat = tf.Variable(generator.normal(size=size).astype("float32"))
    parts = [tf.Variable(tf.zeros(shape)) for shape in [(size // 2,), (size - size // 2,)]]
    weight = tf.Variable(64.0)
    operations: dict[str, Callable[[], tf.Tensor]] = {
        "test: all(is_finite(flat))": lambda: by_elements(flat.value()),
        "test: is_finite(sum(flat * 0))": lambda: by_zeros(flat.value()),
        "test: is_finite(sum(flat)), else elements": lambda: by_sum(flat.value()),
        "test: is_finite(flat . flat), else elements": lambda: by_squares(flat.value()),
        "test: DebugNumericSummaryV2": lambda: by_summary(flat.value()),
        "weight: multiply_no_nan": lambda: tf.math.multiply_no_nan(flat.value(), weight)[0],
        "weight: multiply": lambda: (flat.value() * weight)[0],
        "mean: divide_no_nan": lambda: tf.math.divide_no_nan(flat.value(), weight)[0],
        "mean: divide": lambda: (flat.value() / weight)[0],
        "join: concat of two halves": lambda: tf.concat([part.value() for part in parts], 0)[0],
        "cut: split into two halves": lambda: tf.split(flat.value(), [p.shape[0] for p in parts])[
            1
        ][0],
    }
    return {name: repeated(REPEATS, one) for name, one in operations.items()}


def take_turns(programs: dict[str, Program], rounds: int, times: int) -> list[dict[str, float]]:
    """Milliseconds of processor time of one repetition of each program, round by round."""
    for program in programs.values():
        program()
    found = []
    for _ in range(rounds):
        row = {}
        for name, program in programs.items():
            started = time.process_time()
            program()
            row[name] = 1000 * (time.process_time() - started) / times
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What exactness costs in a step.")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    exchanges = {
        "plain mean": bare,
        "+ weights and control word": weighted,
        "+ all(is_finite)": weighted_and_tested(by_elements),
        "+ is_finite(sum), else elements": weighted_and_tested(by_sum),
    }
    steps = {name: step_program(exchange) for name, exchange in exchanges.items()}
    rows = take_turns(steps, rounds, STEPS)
    print("| step of the CNN | ms | against the plain mean |\n|---|---|---|")
    for name in steps:
        ratio = median(row[name] / row["plain mean"] for row in rows)
        print(f"| {name} | {median(row[name] for row in rows):.2f} | {ratio:.3f} |")
    size = WORKLOADS["cnn"].build().count_params()
    operations = single_operations(size)
    rows = take_turns(operations, rounds, REPEATS)
    print(f"\n| {size:,} elements of float32 | ms |\n|---|---|")
    for name in operations:
        print(f"| {name} | {median(row[name] for row in rows):.3f} |")


if __name__ == "__main__":
    main()
