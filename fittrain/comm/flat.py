"""The one exchange of an update: gradients, weights and sums as flat tensors, one for each dtype.

Flat tensors rather than a list: the order of summation is the same in every run, and one message
costs one latency. Two things need to be known before gradients can travel: how many rows sparse
gradients have, and how large the sums of those in half precision can become. Where there is such a
gradient, a small exchange goes ahead, and takes the weight and the sums along. Everything here runs
inside the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from fittrain.comm.half import Packing, power_above, scale_for
from fittrain.comm.sparse import Exchanges, divide, merge_rows, own_rows, stays_sparse, sum_rows
from fittrain.config import check_wire_dtype

__all__ = ["merge_rows", "reduce_weighted"]


@dataclass
class _Own:
    """What this rank brings.

    Args:
        dense: gradients that travel whole, by position, not yet weighted.
        sparse: those that may travel as rows, weighted, every row once.
        factor: what dense gradients are still to be multiplied by; 0 where they do not count.
        scalars: the weight and the sums, float32.
    """

    dense: dict[int, tf.Tensor]
    sparse: dict[int, tf.IndexedSlices]
    factor: tf.Tensor
    scalars: list[tf.Tensor]


@dataclass
class _Ahead:
    """What all ranks know before gradients travel; nothing where there was no need to ask.

    Args:
        scalars: sums over ranks of the weight and the sums.
        row_counts: rows of all ranks of each sparse gradient.
        scales: of each gradient that travels in half precision.
    """

    scalars: list[tf.Tensor] = field(default_factory=list)
    row_counts: dict[int, tf.Tensor] = field(default_factory=dict)
    scales: dict[int, tf.Tensor] = field(default_factory=dict)

    def packing(self, index: int, dtype: tf.DType) -> Packing:
        """How the gradient at this position travels; `dtype` is that of its sum."""
        scale = self.scales.get(index)
        return Packing(dtype) if scale is None else Packing(tf.float16, scale)


def reduce_weighted(
    communicator: Exchanges,
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
    weight: tf.Tensor | float,
    sums: Sequence[tf.Tensor | float] = (),
    name: str = "gradients",
    *,
    weighted: bool = False,
    wire_dtype: str | None = None,
) -> tuple[list[Any], tf.Tensor, list[tf.Tensor]]:
    """Sum(weight * gradient) / sum(weight) over ranks, and `sums` added up over ranks.

    Args:
        communicator: carries the exchanges.
        gradients: dense or sparse tensors, or None.
        weight: scalar weight of this rank.
        sums: scalars.
        name: begins the name of every exchange.
        weighted: whether the gradients are multiplied by their weights already.
        wire_dtype: "float16" for gradients whose sums are float32, or None.

    Returns:
        The means (each in its own dtype; sparse ones have every row once), the total weight, the
        reduced sums.
    """
    is_half = check_wire_dtype(wire_dtype) is not None
    weight = tf.cast(weight, tf.float32)
    factor = tf.sign(weight) if weighted else weight
    sparse: dict[int, Any] = {i: g for i, g in enumerate(gradients) if stays_sparse(g)}
    dense = {i: g for i, g in enumerate(gradients) if g is not None and i not in sparse}
    own = _Own(
        {i: tf.convert_to_tensor(g) for i, g in dense.items()},
        {i: own_rows(g, factor, sum_dtype(g.dtype)) for i, g in sparse.items()},
        factor,
        [weight, *(tf.cast(value, tf.float32) for value in sums)],
    )
    ahead = _ask_ahead(communicator, own, name, is_half) if is_half or sparse else _Ahead()
    means, (total, *reduced) = _dense_means(communicator, own, ahead, name)
    for index, part in own.sparse.items():
        packing = ahead.packing(index, part.dtype)
        rows = sum_rows(communicator, part, packing, ahead.row_counts[index], f"{name}.{index}")
        mean = divide(rows, total)
        values = tf.cast(mean.values, sparse[index].dtype)
        means[index] = tf.IndexedSlices(values, mean.indices, mean.dense_shape)
    return [means.get(index) for index in range(len(gradients))], total, reduced


def _ask_ahead(communicator: Exchanges, own: _Own, name: str, is_half: bool) -> _Ahead:
    """Collective: the small exchange, of float64, so that row counts are exact."""
    bounds: dict[int, tf.Tensor] = {}
    if is_half:
        bounds |= {i: power_above(part.values) for i, part in _singles(own.sparse).items()}
        bounds |= {i: power_above(g, own.factor) for i, g in _singles(own.dense).items()}
    counts = [tf.size(part.indices) for part in own.sparse.values()]
    parts = [*own.scalars, *counts, *bounds.values()]
    sent = tf.stack([tf.cast(part, tf.float64) for part in parts])
    received = communicator.all_reduce(sent, f"{name}.ahead")
    scalars, row_counts, sums = tf.split(received, [len(own.scalars), len(counts), len(bounds)])
    return _Ahead(
        tf.unstack(tf.cast(scalars, tf.float32), num=len(own.scalars)),
        dict(zip(own.sparse, tf.unstack(row_counts, num=len(counts)), strict=True)),
        dict(zip(bounds, tf.unstack(scale_for(sums), num=len(bounds)), strict=True)),
    )


def _dense_means(
    communicator: Exchanges, own: _Own, ahead: _Ahead, name: str
) -> tuple[dict[int, tf.Tensor], list[tf.Tensor]]:
    """Collective: one exchange for each dtype; and the sums of the scalars, however they went."""
    # float32 first: its tail holds the total weight that the others divide by.
    groups: dict[tf.DType, list[int]] = {} if ahead.scalars else {tf.float32: []}
    for index, gradient in own.dense.items():
        wire = ahead.packing(index, sum_dtype(gradient.dtype)).dtype
        groups.setdefault(wire, []).append(index)
    means: dict[int, tf.Tensor] = {}
    scalars = ahead.scalars
    for wire, members in groups.items():
        tail = [] if scalars else own.scalars
        flat = _own_flat(own, ahead, members)
        sent = tf.concat([flat, tf.stack(tail)], 0) if tail else tf.cast(flat, wire)
        received = tf.cast(communicator.all_reduce(sent, name), flat.dtype)
        if tail:
            scalars = tf.unstack(received[-len(tail) :], num=len(tail))
            received = received[: -len(tail)]
        received = tf.math.divide_no_nan(received, tf.cast(scalars[0], flat.dtype))
        pieces = split_like(received, [own.dense[index] for index in members])
        for index, piece in zip(members, pieces, strict=True):
            unscaled = ahead.packing(index, flat.dtype).unscaled(piece)
            means[index] = tf.cast(unscaled, own.dense[index].dtype)
    return means, scalars


def _own_flat(own: _Own, ahead: _Ahead, members: list[int]) -> tf.Tensor:
    """The weighted gradients of one exchange as one flat tensor, scaled but not yet shortened."""
    parts = []
    for index in members:
        gradient = own.dense[index]
        dtype = sum_dtype(gradient.dtype)
        scaled = ahead.packing(index, dtype).scaled(tf.cast(gradient, dtype))
        parts.append(tf.reshape(scaled, [-1]))
    flat = tf.concat(parts, 0) if parts else tf.zeros([0], tf.float32)
    # Where the weight is 0 the gradient may be anything, even NaN, and must not count.
    return tf.math.multiply_no_nan(flat, tf.cast(own.factor, flat.dtype))


def sum_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype that gradients are summed in: float32 for those in half precision."""
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def split_like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a flat tensor into pieces shaped like `tensors`."""
    if not tensors:
        return []
    pieces = tf.split(flat, [size_of(tensor) for tensor in tensors])
    return [
        tf.ensure_shape(tf.reshape(piece, tf.shape(tensor)), tensor.shape)
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]


def size_of(tensor: tf.Tensor) -> int | tf.Tensor:
    """Number of elements, static where the shape is known."""
    static = tensor.shape.num_elements()
    return tf.size(tensor) if static is None else static


def _singles(gradients: dict[int, Any]) -> dict[int, Any]:
    """Those of a mapping that are summed in float32."""
    return {i: g for i, g in gradients.items() if sum_dtype(g.dtype) == tf.float32}
