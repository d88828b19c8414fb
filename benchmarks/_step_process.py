"""One way of training one model, at the word of step.py; started by it and never by hand.

Builds and warms up, says so in a file, and then trains for as many epochs as the next file says.
Files, since a launcher gives standard input to one rank only.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fittrain
import keras
import numpy as np
import tensorflow as tf
from _models import WORKLOADS, Workload, loss_of
from fittrain import session

Fit = Callable[[int], None]


def main(name: str, way: str, backend: str, folder: str) -> None:
    workload, place = WORKLOADS[name], Path(folder)
    keras.utils.set_random_seed(1)
    fittrain.init(backend, seed=1)
    x, y = workload.data()
    fit = MAKERS[way](workload, x, y)
    fit(1)
    started = time.perf_counter()
    fit(1)
    tell(place / "ready", {"epoch_seconds": time.perf_counter() - started})
    number = 0
    while epochs := wait_for(place / f"go-{number}"):
        session.current().communicator.barrier()
        started = time.perf_counter()
        fit(epochs)
        rate = len(y) * epochs / (time.perf_counter() - started)
        tell(place / f"result-{number}", {"samples_per_second": rate})
        number += 1


def by_keras(workload: Workload, x, y) -> Fit:
    model = workload.build()
    model.compile(workload.optimizer(), loss_of(workload), metrics=workload.metrics)
    return lambda epochs: model.fit(x, y, workload.batch, epochs, verbose=0)


def by_fittrain(workload: Workload, x, y, *, fused_updates: bool = True) -> Fit:
    trainer = fittrain.Trainer(
        workload.build,
        optimizer=workload.optimizer(),
        loss=loss_of(workload),
        metrics=workload.metrics,
        fused_updates=fused_updates,
    )
    rows = workload.batch * fittrain.size()
    return lambda epochs: trainer.fit(x, y, batch_size=rows, epochs=epochs, verbose=0)


def by_hand(workload: Workload, x, y) -> Fit:
    """What a careful user would write: a loop in the graph, the next rows gathered in a thread."""
    block, metrics = block_by_hand(workload)
    generator = np.random.default_rng(1)

    def gather(rows):
        return tf.nest.map_structure(lambda t: tf.convert_to_tensor(t[rows]), (x, y))

    def epoch(pool) -> None:
        order = generator.permutation(len(y))
        size = workload.block * workload.batch
        parts = [order[first : first + size] for first in range(0, len(y), size)]
        ready = pool.submit(gather, parts[0])
        for following in [*parts[1:], None]:
            xs, ys = ready.result()
            if following is not None:
                ready = pool.submit(gather, following)
            block(xs, ys)
        for metric in metrics:
            metric.result().numpy()
            metric.reset_state()

    def fit(epochs: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(epochs):
                epoch(pool)

    return fit


def block_by_hand(workload: Workload):
    """The compiled loop over the batches of a block, and its metrics, the loss first."""
    model, optimizer = workload.build(), workload.optimizer()
    loss_of_batch = keras.losses.get(loss_of(workload))
    mean = keras.metrics.Mean()
    metrics = [keras.metrics.SparseCategoricalAccuracy() for _ in workload.metrics]
    variables = model.trainable_variables
    optimizer.build(variables)
    batch = workload.batch

    def update(xb, yb):
        with tf.GradientTape() as tape:
            predicted = model(xb, training=True)
            loss = tf.reduce_mean(loss_of_batch(yb, predicted))
        optimizer.apply(tape.gradient(loss, variables), variables)
        mean.update_state(loss)
        for metric in metrics:
            metric.update_state(yb, predicted)

    @tf.function(reduce_retracing=True, autograph=False)
    def block(xs, ys):
        def body(i):
            update(*tf.nest.map_structure(lambda t: t[i * batch : (i + 1) * batch], (xs, ys)))
            return i + 1

        steps = tf.shape(ys)[0] // batch
        tf.while_loop(lambda i: i < steps, body, [tf.constant(0)], parallel_iterations=1)

    return block, [mean, *metrics]


MAKERS = {
    "keras": by_keras,
    "fittrain": by_fittrain,
    "unfused": functools.partial(by_fittrain, fused_updates=False),
    "loop": by_hand,
}


def tell(path: Path, what: dict[str, float]) -> None:
    """Writes a file that is whole as soon as it is there; rank 0 speaks."""
    if fittrain.is_chief():
        path.with_suffix(".part").write_text(json.dumps(what))
        path.with_suffix(".part").rename(path)


def wait_for(path: Path) -> int:
    while not path.exists():
        time.sleep(0.002)
    return int(json.loads(path.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
