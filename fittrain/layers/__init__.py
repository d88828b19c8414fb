"""Keras layers that compute over the samples of all ranks.

Synopsis::

    from fittrain.layers import SyncBatchNormalization, convert_batch_norm

    model = keras.Sequential([keras.Input((8,)), SyncBatchNormalization(), keras.layers.Dense(1)])
    model = convert_batch_norm(keras.applications.ResNet50(weights=None))
    convert_batch_norm(model, synchronized=False).save("model.keras")    # opens without fittrain
"""

from fittrain.layers.batch_norm import SyncBatchNormalization
from fittrain.layers.convert import convert_batch_norm

__all__ = ["SyncBatchNormalization", "convert_batch_norm"]
