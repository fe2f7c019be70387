"""How far a candidate's output is from the reference: eight losses in one pass over the data.

The first five formulas are trtexec's (NVIDIA/TensorRT 11, samples/common/sampleUtils.cpp, the
AccuracyValidator classes), with d = candidate - reference over N elements, all in float64:

    l0    share of elements with |d| > atol + rtol * |reference|
    l1    sum(|d|) / N
    l2    sum(d * d) / N             the mean square, without a root: so it is in trtexec
    lInf  max(|d|)
    cos   1 - sum(candidate * reference) / (|candidate| * |reference|)

and three are ours, since they need no knowledge of an output's scale:

    rel_l2    |d| / |reference|, of Euclidean norms
    rel_lInf  max(|d|) / max(|reference|)
    exact     share of all elements whose bits differ; 0.0 and -0.0 do

Beside an all-zero reference the relative ones are 0 where the candidate is zero too, and else infinite.

Where trtexec goes wrong, this module differs on purpose. Comparisons with NaN are false, so NaN outputs read
l0 = 0 and lInf = 0 there; here an element that is not finite in the candidate alone makes every loss infinite
and counts as a mismatch in l0. Elements that are not finite in the reference cannot be compared: they are
left out of N and counted, for the verdict to blame the reference. trtexec gives cos = 1 whenever the product
of the norms is below 1e-12, so that two equal tiny outputs fail; here only zero against non-zero gives 1,
zero against zero gives 0, and scale does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.scan import BLOCK, Sums, dot, flat, scan

LOSSES = ("l0", "l1", "l2", "lInf", "cos", "rel_l2", "rel_lInf", "exact")

Scalar = float | int | bool


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a pair of outputs.

    Attributes:
        index: its place in the output's shape.
        reference, candidate: the values, integers exact.
        difference: |candidate - reference|, integers exact, NaN when either is NaN.
        allowed: atol + rtol * |reference|, the bound of l0.
        decided_by: "atol" or "rtol", the larger term of that bound.
    """

    index: tuple[int, ...]
    reference: Scalar
    candidate: Scalar
    difference: float | int
    allowed: float
    decided_by: str


@dataclass(frozen=True, slots=True)
class OutputLosses:
    """All losses of one output, and what is needed to explain them.

    Attributes:
        values: loss name -> value, one per name in LOSSES, never NaN.
        elements: elements of the output.
        compared: elements that are finite in the reference, the N of the formulas.
        mismatches: elements beyond atol + rtol * |reference|, candidate-only non-finite ones included.
        non_finite_candidate: elements finite in the reference and not in the candidate.
        non_finite_reference: elements not finite in the reference, whatever the candidate has there.
        differing_bits: elements whose bytes differ; 0.0 and -0.0 differ, and so do NaNs of another payload.
        worst: the first candidate-only non-finite element, else the one of largest difference, else the first
            whose bits differ, else None.
        farthest: the element farthest beyond its own bound, which decides l0; None when none is beyond.
        bad_reference: the first element that is not finite in the reference, or None.
    """

    values: dict[str, float]
    elements: int
    compared: int
    mismatches: int
    non_finite_candidate: int
    non_finite_reference: int
    differing_bits: int
    worst: Element | None
    farthest: Element | None
    bad_reference: Element | None


def losses(reference: Array, candidate: Array, atol: float = 1e-5, rtol: float = 1e-5) -> OutputLosses:
    """Compare two arrays of one shape and dtype in a single pass, in blocks, without a copy of either.

    Args:
        reference, candidate: any shape; bool, integers (int4, uint4 and 64 bits included), float16, bfloat16,
            float8, float32, float64. The small types are those of ml_dtypes.
        atol, rtol: the bound of l0, finite and not negative.

    Raises:
        BadInput: a dtype that is not a number, unequal dtypes or shapes, or a bound out of range.
    """
    _check(reference, candidate, atol, rtol)
    return _conclude(scan(reference, candidate, atol, rtol), reference, candidate, atol, rtol)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether `losses` knows how to compare this dtype."""
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or dtype.type.__module__ == "ml_dtypes"


def _check(reference: Array, candidate: Array, atol: float, rtol: float) -> None:
    if reference.dtype != candidate.dtype or reference.shape != candidate.shape:
        raise BadInput(
            "outputs to compare must have one dtype and shape, found "
            f"{reference.dtype} {list(reference.shape)} and {candidate.dtype} {list(candidate.shape)}"
        )
    if not is_number(reference.dtype):
        raise BadInput(
            f"outputs of type {reference.dtype} cannot be compared: expected a number or bool type"
        )
    for name, bound in (("atol", atol), ("rtol", rtol)):
        if not (math.isfinite(bound) and bound >= 0):
            raise BadInput(f"{name} must be a finite number >= 0, found {bound}")


def _conclude(sums: Sums, reference: Array, candidate: Array, atol: float, rtol: float) -> OutputLosses:
    def element(at: int) -> Element | None:
        return None if at < 0 else _element(reference, candidate, at, atol, rtol)

    compared = reference.size - sums.bad_reference
    mismatches = sums.mismatches + sums.bad_candidate
    worst = next(
        (at for at in (sums.first_bad_candidate, sums.largest_at, sums.first_differing) if at >= 0), -1
    )
    farthest = sums.first_bad_candidate if sums.bad_candidate else sums.excess_at
    return OutputLosses(
        values=_values(sums, reference, candidate, compared, mismatches),
        elements=reference.size,
        compared=compared,
        mismatches=mismatches,
        non_finite_candidate=sums.bad_candidate,
        non_finite_reference=sums.bad_reference,
        differing_bits=sums.differing,
        worst=element(worst),
        farthest=element(farthest),
        bad_reference=element(sums.first_bad_reference),
    )


def _values(
    sums: Sums, reference: Array, candidate: Array, compared: int, mismatches: int
) -> dict[str, float]:
    if reference.size == 0:
        return dict.fromkeys(LOSSES, 0.0)
    if compared == 0:  # nothing was compared, and that must never look like a match
        return dict.fromkeys(LOSSES, math.inf) | {"l0": 1.0, "exact": 1.0}
    shares = {"l0": mismatches / compared, "exact": sums.differing / reference.size}
    if sums.bad_candidate:
        return dict.fromkeys(LOSSES, math.inf) | shares
    return shares | {
        "l1": _total(sums.absolute) / compared,
        "l2": _total(sums.squares) / compared,
        "lInf": sums.largest,
        "cos": _cosine(sums, reference, candidate),
        "rel_l2": _relative_l2(sums, reference, candidate),
        "rel_lInf": _relative(sums.largest, sums.largest_reference),
    }


def _total(parts: list[float]) -> float:
    try:
        return math.fsum(parts)
    except (OverflowError, ValueError):  # beyond float64, or infinite blocks of both signs
        return math.inf


def _cosine(sums: Sums, reference: Array, candidate: Array) -> float:
    """1 - cosine similarity in [0, 2], never NaN."""
    if sums.differing == 0:
        return 0.0
    parts = (_total(sums.reference), _total(sums.candidate), _total(sums.product))
    if not all(_in_range(norm) for norm in parts[:2]):
        parts = _scaled_products(lambda: _usable(flat(reference), flat(candidate)))[0]
    rr, cc, rc = parts
    if rr == 0 or cc == 0:
        return 0.0 if rr == cc else 1.0
    # Clamped, since rounding alone can leave the range by 1e-16.
    return min(max(1.0 - rc / (math.sqrt(rr) * math.sqrt(cc)), 0.0), 2.0)


def _in_range(square: float) -> bool:
    """Whether a sum of squares has kept its precision: beyond this they leave the range of float64."""
    return 1e-280 < square < 1e280


def _relative_l2(sums: Sums, reference: Array, candidate: Array) -> float:
    """|d| / |reference|, whatever the scale of either."""
    if not 0 < sums.largest < math.inf or sums.largest_reference == 0:
        return _relative(sums.largest, sums.largest_reference)
    dd, rr, exponent = _total(sums.squares), _total(sums.reference), 0
    if not (_in_range(dd) and _in_range(rr)):

        def blocks() -> Iterator[tuple[Array, Array]]:
            for r, c in _usable(flat(reference), flat(candidate)):
                yield c - r, r

        (dd, rr, _), (of_difference, of_reference) = _scaled_products(blocks)
        exponent = of_difference - of_reference
    try:
        return math.ldexp(math.sqrt(dd) / math.sqrt(rr), exponent)
    except OverflowError:
        return math.inf


def _relative(part: float, whole: float) -> float:
    """part / whole, where nothing of nothing is 0 and something of nothing infinite."""
    if part == 0 or whole == 0:
        return 0.0 if part == 0 else math.inf
    return part / whole  # Python's division of floats overflows to an infinity


def _usable(reference: Any, candidate: Any) -> Iterator[tuple[Array, Array]]:
    """Both sides in float64, block by block, with zeros where either is not finite."""
    for start in range(0, len(reference), BLOCK):
        stop = start + BLOCK
        r, c = reference[start:stop].astype(np.float64), candidate[start:stop].astype(np.float64)
        usable = np.isfinite(r) & np.isfinite(c)
        yield np.where(usable, r, 0.0), np.where(usable, c, 0.0)


def _scaled_products(
    blocks: Callable[[], Iterator[tuple[Array, Array]]],
) -> tuple[tuple[float, float, float], tuple[int, int]]:
    """The products aa, bb, ab with each side divided by its largest magnitude, in two more passes.

    Returns: the products, and the powers of two that the sides were divided by.
    """
    tops = [0.0, 0.0]
    for pair in blocks():
        tops = [max(top, float(np.abs(side).max())) for top, side in zip(tops, pair, strict=True)]
    # Powers of two, so that scaling rounds nothing.
    scales = (math.frexp(tops[0])[1], math.frexp(tops[1])[1])
    sums: list[list[float]] = [[], [], []]
    for pair in blocks():
        a, b = (np.ldexp(side, -scale) for side, scale in zip(pair, scales, strict=True))
        for total, product in zip(sums, (dot(a, a), dot(b, b), dot(a, b)), strict=True):
            total.append(product)
    aa, bb, ab = (math.fsum(total) for total in sums)
    return (aa, bb, ab), scales


def _element(reference: Array, candidate: Array, at: int, atol: float, rtol: float) -> Element:
    index = tuple(int(i) for i in np.unravel_index(at, reference.shape))
    r, c = _scalar(reference[index]), _scalar(candidate[index])
    relative = rtol * abs(r)
    return Element(
        index=index,
        reference=r,
        candidate=c,
        difference=abs(c - r),
        allowed=atol + relative,
        decided_by="atol" if atol >= relative else "rtol",
    )


def _scalar(value: Any) -> Scalar:
    scalar: Scalar = value.item()
    return scalar if isinstance(scalar, bool | int) else float(scalar)
