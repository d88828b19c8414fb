"""A keyed permutation of range(length), computed number by number.

The order of an epoch is a function, not a list: it needs no memory, any position is reached at
once, and every rank computes the same one. Long orders are a Feistel network on the bits of
the index with cycle-walking back into the range (Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002); its round function is the 64-bit finaliser of SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014). A network on few bits would favour some orders, so short ones are sorted by
that same function instead.

Synopsis::

    order = Permutation(length=60_000, key=derive(seed, "epoch", 3))
    order(np.arange(256))         # the first 256 samples of that epoch
"""

from __future__ import annotations

import numpy as np

ROUNDS = 6
SORTED_LENGTH = 4096
"""Up to here an order is a small table."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


class Permutation:
    """A permutation of range(length) that depends on `key` alone.

    Args:
        length: number of elements, 0 or more.
        key: any integer; equal keys give equal permutations, on every machine.

    Example:
        >>> order = Permutation(length=5, key=7)
        >>> sorted(order(np.arange(5)).tolist())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, length: int, key: int) -> None:
        self.length = length
        # At least two bits, so that both halves hold one.
        bits = max(2, (length - 1).bit_length())
        self._low_bits = bits // 2
        self._high_bits = bits - self._low_bits
        self._table = _sorted_order(length, key) if length <= SORTED_LENGTH else None
        self._keys = [np.uint64(_splitmix(key + (i + 1) * _GOLDEN)) for i in range(ROUNDS)]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Elements at `positions`.

        Args:
            positions: integers in range(length), any shape.

        Returns:
            int64 array of the same shape.
        """
        if self._table is not None:
            return np.asarray(self._table[positions])
        values = self._encrypt(np.asarray(positions).astype(np.uint64))
        outside = np.flatnonzero(values.reshape(-1) >= self.length)
        flat = values.reshape(-1)
        while outside.size:
            walked = self._encrypt(flat[outside])
            flat[outside] = walked
            outside = outside[walked >= self.length]
        return flat.astype(np.int64).reshape(np.shape(positions))

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        high_bits, low_bits = self._high_bits, self._low_bits
        high, low = values >> np.uint64(low_bits), values & np.uint64((1 << low_bits) - 1)
        for key in self._keys:
            # The halves change places, and with them their widths where these differ.
            mixed = (high ^ _mix(low ^ key)) & np.uint64((1 << high_bits) - 1)
            high, low = low, mixed
            high_bits, low_bits = low_bits, high_bits
        joined: np.ndarray = (high << np.uint64(low_bits)) | low
        return joined


def _sorted_order(length: int, key: int) -> np.ndarray:
    numbers = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return np.argsort(_mix(numbers ^ np.uint64(_splitmix(key))), kind="stable")


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def _splitmix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
