"""Seeds: one number from the user, a stream of its own for each purpose.

Owns the derivation, which is the same on every machine and in every Python process.

    set_seeds(derive(seed, "model"))                    # the same on all ranks
    generator = numpy.random.default_rng(derive(seed, "augment", rank))
"""

from __future__ import annotations

import hashlib
import operator

from fittrain.errors import ArgumentError

_LIMIT = 2**32  # NumPy's and Keras's global seeds take no more.


def derive(seed: int, *keys: int | str) -> int:
    """Returns a seed for one purpose, unrelated to those of other purposes.

    Args:
        seed: The user's seed, any whole number.
        *keys: What the new seed is for: words and numbers, whose order and type count.

    Returns:
        A number from 0 to 2**63 - 1.

    Raises:
        ArgumentError: `seed` is not a whole number, or a key is neither that nor a string.

    Example:
        >>> derive(7, "dropout", 0) == derive(7, "dropout", 1)
        False
    """
    parts = [_whole(seed, "seed"), *(_key(key) for key in keys)]
    # Python's hash() of strings differs between processes, so it cannot be used here.
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def set_seeds(seed: int) -> None:
    """Seeds Python, NumPy, Keras and TensorFlow. Imports Keras.

    Args:
        seed: Any whole number. From 0 to 2**32 - 1 it is what `keras.utils.set_random_seed` gets,
            so that a plain Keras script with the same seed agrees; others are derived from.

    Raises:
        ArgumentError: `seed` is not a whole number.
    """
    number = _whole(seed, "seed")
    import keras

    keras.utils.set_random_seed(number if 0 <= number < _LIMIT else derive(number) % _LIMIT)


def _key(key: int | str) -> int | str:
    return str(key) if isinstance(key, str) else _whole(key, "keys")


def _whole(value: int, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        wanted = "a whole number" if name == "seed" else "whole numbers and strings"
        raise ArgumentError(
            f"`{name}` must be {wanted}. Received {value!r}. Use a number such as 7."
        ) from None
