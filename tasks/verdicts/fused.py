"""The sums of a scan in one pass through the registers, compiled by numba where that is installed.

numpy makes some fifteen passes over a block that lies in the cache; a compiled loop makes one, at several
times the speed. Importing numba and compiling take seconds, so `scan` asks for it only where outputs are
large.
The loop only adds up. Whatever has a place (the largest difference, the first differing element, anything
that is not finite) makes it leave the block to numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array

#: Sums in any order, multiplications fused into them; infinities and NaN keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}
_INFINITE = 0x7FF0000000000000

#: Fills [rr, cc, rc, sum |d|, sum d*d, max |d|, max |r|, mismatches, differing]; says whether all is finite.
Kernel = Callable[[Array, Array, float, float, Array], bool]


def kernel_for(dtype: np.dtype[Any]) -> Kernel | None:
    """The compiled loop for a dtype; None without numba, and for dtypes that numpy's way must do."""
    return _kernel(dtype.name)


@cache
def _kernel(name: str) -> Kernel | None:
    try:
        import numba
    except ImportError:
        return None
    widen = _widening(numba, name)
    return None if widen is None else _compiled(numba, widen)


def bits_of(array: Array) -> Array:
    """The array as the kernel of its dtype takes it: small floats as integers of the same bits."""
    if array.dtype.name in ("float16", "bfloat16"):
        return array.view(np.uint16)
    return array.view(np.uint8) if array.dtype.kind == "b" else array


def _widening(numba: Any, name: str) -> Any:
    """From an element to float64; None where a loop over one element at a time is not exact, or not known."""
    jit = numba.njit(fastmath=_FAST)

    @jit
    def single(bits: Any) -> Any:
        return np.uint32(bits).view(np.float32)

    if name in ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"):

        @jit
        def plain(value: Any) -> Any:
            return np.float64(value)

        return plain
    if name == "bfloat16":

        @jit
        def brain(value: Any) -> Any:
            return np.float64(single(np.uint32(value) << np.uint32(16)))

        return brain
    if name == "float16":

        @jit
        def half(value: Any) -> Any:
            # As a float32 of the same fields the value is 2**112 too small, subnormals included.
            bits = np.uint32(value)
            magnitude = (bits & np.uint32(0x7FFF)) << np.uint32(13)
            wide: Any = np.float64(single(magnitude)) * 2.0**112
            if magnitude >= np.uint32(0x0F800000):
                wide = np.inf  # NaN too: either makes the block one for numpy
            return -wide if bits & np.uint32(0x8000) else wide

        return half
    return None


def _compiled(numba: Any, widen: Any) -> Kernel:
    # Functions of their own, since numba sees the bits of values that are assigned once only.
    @numba.njit
    def bits(value: float) -> Any:
        return np.float64(value).view(np.int64)

    @numba.njit
    def number(value: Any) -> Any:
        return np.int64(value).view(np.float64)

    @numba.njit(nogil=True, fastmath=_FAST)
    def kernel(r_bits: Any, c_bits: Any, atol: float, rtol: float, out: Any) -> bool:
        rr = cc = rc = one = two = 0.0
        top = high = np.int64(0)
        mismatches = differing = np.int64(0)
        for i in range(len(r_bits)):
            r, c = widen(r_bits[i]), widen(c_bits[i])
            d, size = abs(c - r), abs(r)
            rr += r * r
            cc += c * c
            rc += r * c
            one += d
            two += d * d
            # Floats that are not negative have the order of their bits, and integers have a fast maximum.
            top = max(top, bits(d))
            high = max(high, bits(size))
            mismatches += np.int64(d > atol + rtol * size)
            differing += np.int64(r_bits[i] != c_bits[i])
        out[0], out[1], out[2], out[3], out[4] = rr, cc, rc, one, two
        out[5], out[6] = number(top), number(high)
        out[7], out[8] = mismatches, differing
        return bool(top < _INFINITE and high < _INFINITE)

    compiled: Kernel = kernel
    return compiled
