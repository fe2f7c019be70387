"""One pass over a pair of arrays, in blocks: the sums, counts and places that losses are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array
from routetune.tasks.verdicts.fused import Kernel, bits_of, kernel_for

#: Elements a block: its buffers stay in cache, and the calls around them cost a tenth of the work.
BLOCK = 65536
#: Elements from which on a compiled loop is worth the seconds that compiling takes.
LARGE = 1 << 24
#: Elements a dot product: BLAS starts threads of its own above 10000, which would spin beside a measurement.
_DOT = 8192


@dataclass(slots=True)
class Sums:
    """What a scan adds up; float sums are kept per block, to be added exactly at the end."""

    absolute: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    product: list[float] = field(default_factory=list)
    mismatches: int = 0
    differing: int = 0
    bad_candidate: int = 0
    bad_reference: int = 0
    largest: float = 0.0
    largest_reference: float = 0.0
    largest_at: int = -1
    excess: float = 0.0
    excess_at: int = -1
    first_differing: int = -1
    first_bad_candidate: int = -1
    first_bad_reference: int = -1


def scan(reference: Array, candidate: Array, atol: float, rtol: float) -> Sums:
    """The sums over a pair of one shape and dtype."""
    run = _Scan(flat(reference), flat(candidate), atol, rtol)
    # Overflow and NaN are looked for, not stumbled over.
    with np.errstate(all="ignore"):
        for start in range(0, reference.size, BLOCK):
            run.add(start, min(start + BLOCK, reference.size))
    return run.sums


def flat(array: Array) -> Any:
    """A one-dimensional view; of a strided array, an iterator whose slices are copies of one block only."""
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


class _Scan:
    """A pass over the pair under way, with buffers that every block uses again."""

    def __init__(self, reference: Any, candidate: Any, atol: float, rtol: float) -> None:
        self.sums = Sums()
        self._pair = (reference, candidate)
        self._atol, self._rtol = atol, rtol
        dtype = reference[:0].dtype
        self._wide = dtype.kind in "iu" and dtype.itemsize == 8
        self._exact = dtype.kind in "biu"
        self._raw = np.dtype(f"u{dtype.itemsize}")
        self._table = _table(dtype)
        self._mask = _used_bits(dtype)
        length = min(BLOCK, len(reference))
        self._buffers = [np.empty(length) for _ in range(4)]
        self._flags = np.empty(length, bool)
        self._ones = np.ones(length)
        self._kernel: Kernel | None = kernel_for(dtype) if len(reference) >= LARGE else None
        self._fused = np.empty(9)

    def add(self, start: int, stop: int) -> None:
        raw_r, raw_c = (side[start:stop] for side in self._pair)
        if self._kernel is not None and self._by_kernel(self._kernel, raw_r, raw_c):
            return
        sums = self.sums
        differing = self._differing(start, raw_r, raw_c)
        r = self._as_float64(raw_r, 0)
        rr = dot(r, r)
        if differing == 0 and math.isfinite(rr):
            self._magnitude(r)
            for name in ("reference", "candidate", "product"):
                getattr(sums, name).append(rr)
            return
        c = self._as_float64(raw_c, 1)
        cc = dot(c, c)
        if not (self._exact or (math.isfinite(rr) and math.isfinite(cc))):
            r, c = self._without_non_finite(start, r, c)
            rr, cc = dot(r, r), dot(c, c)
        self._magnitude(r)
        d = self._buffers[2][: len(r)]
        if self._wide:
            _exact_difference(raw_r, raw_c, d)
        else:
            np.subtract(c, r, out=d)
            np.abs(d, out=d)
        sums.reference.append(rr)
        sums.candidate.append(cc)
        sums.product.append(dot(r, c))
        sums.absolute.append(dot(d, self._ones[: len(d)]))
        sums.squares.append(dot(d, d))
        self._worst(start, r, d)

    def _by_kernel(self, kernel: Kernel, raw_r: Array, raw_c: Array) -> bool:
        """Add a block by the compiled loop; says no where the block has a place to be found by numpy."""
        sums = self.sums
        if not kernel(bits_of(raw_r), bits_of(raw_c), self._atol, self._rtol, self._fused):
            return False
        rr, cc, rc, one, two, top, high, mismatches, differing = self._fused.tolist()
        farther = mismatches and (sums.excess_at < 0 or top - self._atol > sums.excess)
        if top > sums.largest or farther or (differing and sums.first_differing < 0):
            return False
        sums.reference.append(rr)
        sums.candidate.append(cc)
        sums.product.append(rc)
        if differing:
            sums.absolute.append(one)
            sums.squares.append(two)
        sums.largest_reference = max(sums.largest_reference, high)
        sums.mismatches += int(mismatches)
        sums.differing += int(differing)
        return True

    def _differing(self, start: int, raw_r: Array, raw_c: Array) -> int:
        flags = self._flags[: len(raw_r)]
        bits_r, bits_c = raw_r.view(self._raw), raw_c.view(self._raw)
        if self._mask is not None:
            bits_r, bits_c = bits_r & self._mask, bits_c & self._mask
        np.not_equal(bits_r, bits_c, out=flags)
        differing = int(np.count_nonzero(flags))
        if differing:
            self.sums.differing += differing
            if self.sums.first_differing < 0:
                self.sums.first_differing = start + int(flags.argmax())
        return differing

    def _as_float64(self, raw: Array, buffer: int) -> Array:
        if raw.dtype == np.float64:
            return raw
        out = self._buffers[buffer][: len(raw)]
        if self._table is not None:
            # Faster than converting one by one, and mode "clip" spares the check of 8-bit indices.
            np.take(self._table, raw.view(self._raw), out=out, mode="clip")
        else:
            np.copyto(out, raw, casting="unsafe")
        return out

    def _without_non_finite(self, start: int, r: Array, c: Array) -> tuple[Array, Array]:
        """Count what is not finite and put zeros in its place on both sides, so that it adds nothing."""
        sums = self.sums
        bad_r = ~np.isfinite(r)
        bad_c = ~(np.isfinite(c) | bad_r)
        if bad_r.any():
            sums.bad_reference += int(np.count_nonzero(bad_r))
            if sums.first_bad_reference < 0:
                sums.first_bad_reference = start + int(bad_r.argmax())
        if bad_c.any():
            sums.bad_candidate += int(np.count_nonzero(bad_c))
            if sums.first_bad_candidate < 0:
                sums.first_bad_candidate = start + int(bad_c.argmax())
        bad = bad_r | bad_c
        return np.where(bad, 0.0, r), np.where(bad, 0.0, c)

    def _magnitude(self, r: Array) -> None:
        # Two reductions read the block twice and write nothing, which is cheaper than |r| and one.
        top = max(float(r.max()), -float(r.min()))
        self.sums.largest_reference = max(self.sums.largest_reference, top)

    def _worst(self, start: int, r: Array, d: Array) -> None:
        sums = self.sums
        top = float(d.max())
        if top > sums.largest:
            sums.largest, sums.largest_at = top, start + int(d.argmax())
        if top <= self._atol:
            return  # rtol * |r| only widens the bound
        allowed = np.abs(r, out=self._buffers[3][: len(r)])
        allowed *= self._rtol
        allowed += self._atol
        count = int(np.count_nonzero(np.greater(d, allowed, out=self._flags[: len(d)])))
        sums.mismatches += count
        if count and (sums.excess_at < 0 or top - self._atol > sums.excess):
            excess = np.subtract(d, allowed, out=d)
            most = float(excess.max())
            if most > sums.excess or sums.excess_at < 0:
                sums.excess, sums.excess_at = most, start + int(excess.argmax())


def dot(a: Array, b: Array) -> float:
    """Dot product in pieces short enough for BLAS to stay in the calling thread."""
    whole = len(a) // _DOT * _DOT
    total = float(np.dot(a[whole:], b[whole:]))
    if whole:
        total += float(np.vecdot(a[:whole].reshape(-1, _DOT), b[:whole].reshape(-1, _DOT)).sum())
    return total


def _exact_difference(raw_r: Array, raw_c: Array, out: Array) -> None:
    """|c - r| of 64-bit integers: in uint64 it cannot overflow, and is rounded only on its way to float64."""
    high, low = np.maximum(raw_r, raw_c), np.minimum(raw_r, raw_c)
    np.copyto(out, high.view(np.uint64) - low.view(np.uint64), casting="unsafe")


def _table(dtype: np.dtype[Any]) -> Array | None:
    """float64 of each bit pattern, for the one-byte types that numpy can only convert one by one."""
    if dtype.itemsize != 1 or dtype.type.__module__ != "ml_dtypes":
        return None
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)


def _used_bits(dtype: np.dtype[Any]) -> np.unsignedinteger[Any] | None:
    """The mask of the bits that mean something in a type kept in a wider byte (int4, float4), else None."""
    if dtype.itemsize != 1 or dtype.type.__module__ != "ml_dtypes":
        return None
    import ml_dtypes

    name = dtype.name
    bits = (ml_dtypes.iinfo if "int" in name else ml_dtypes.finfo)(dtype).bits
    return np.uint8((1 << bits) - 1) if bits < 8 else None
