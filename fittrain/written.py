"""Which operations of a graph under construction change which variables.

Synopsis::

    for variable, operation in written_variables(graph, model.trainable_variables):
        print(variable.path, "is changed by", operation.name)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

WRITING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStrided")
CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case")


def written_variables(graph: Any, variables: Sequence[Any]) -> Iterator[tuple[Any, tf.Operation]]:
    """Each variable with each operation of `graph` that changes it.

    Args:
        graph: the `FuncGraph` being built; calls of other functions count as one operation.
        variables: Keras or TensorFlow variables.
    """
    by_handle = {id(_handle(variable)): variable for variable in variables}
    inside = {}
    for outer, placeholder in graph.captures:
        variable = by_handle.get(id(_root(outer)))
        if variable is not None:
            inside[id(placeholder)] = variable
    for operation in graph.get_operations():
        if is_call(operation) or operation.type.startswith(WRITING):
            _, written = get_read_write_resource_inputs(operation)
            for tensor in written:
                if id(tensor) in inside:
                    yield inside[id(tensor)], operation


def is_call(operation: tf.Operation) -> bool:
    """Whether an operation runs another function's graph."""
    return any(operation.type == kind or operation.type == f"Stateless{kind}" for kind in CALLS)


def _handle(variable: Any) -> Any:
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle


def _root(tensor: Any) -> Any:
    """The tensor that a captured one stands for, out of all graphs."""
    captures = getattr(getattr(tensor, "graph", None), "captures", ())
    outer = next((outer for outer, inner in captures if inner is tensor), None)
    return tensor if outer is None else _root(outer)
