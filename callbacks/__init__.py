"""Callbacks that know about ranks and run folders.

Synopsis::

    from fittrain import callbacks

    trainer.fit(x, y, callbacks=[callbacks.TensorBoard()])
"""

from .tensorboard import TensorBoard

__all__ = ["TensorBoard"]
