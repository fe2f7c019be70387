"""Losses against their plain float64 definition, for every dtype, non-finite values included."""

from __future__ import annotations

import math
import tracemalloc
from functools import cache

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts import scan
from routetune.tasks.verdicts.losses import LOSSES, losses

FLOATS = ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4", "uint4"]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def plain(reference: np.ndarray, candidate: np.ndarray, atol: float, rtol: float) -> dict[str, float]:
    """The definition, written without regard to speed: finite values in the reference, candidates any."""
    r = [v.item() for v in reference.reshape(-1)]
    c = [v.item() for v in candidate.reshape(-1)]
    pairs = [(a, b) for a, b in zip(r, c, strict=True) if math.isfinite(a)]
    if not pairs:
        return dict.fromkeys(LOSSES, math.inf if r else 0.0) | dict.fromkeys(
            ("l0", "exact"), 1.0 if r else 0.0
        )
    shares = {"exact": differing_bits(reference, candidate) / len(r)}
    beyond = sum(1 for a, b in pairs if not abs(b - a) <= atol + rtol * abs(a))
    if not all(math.isfinite(b) for _, b in pairs):
        return dict.fromkeys(LOSSES, math.inf) | shares | {"l0": beyond / len(pairs)}
    d = [float(abs(b - a)) for a, b in pairs]
    a, b = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    # math.hypot scales by itself, so that no square leaves the range
    length, error = math.hypot(*a), math.hypot(*d)
    largest = float(np.max(np.abs(a)))
    a, b = (side / np.max(np.abs(side)) if np.any(side) else side for side in (a, b))
    # a product of vectors is added up in another order, and less well, on each processor
    rr, cc, rc = (math.fsum(product) for product in (a * a, b * b, a * b))
    cos = (0.0 if rr == cc else 1.0) if rr == 0 or cc == 0 else 1 - rc / math.sqrt(rr) / math.sqrt(cc)
    return shares | {
        "rel_l2": (error / length if length else math.inf) if error else 0.0,
        "rel_lInf": (max(d) / largest if largest else math.inf) if max(d) else 0.0,
        "l0": beyond / len(pairs),
        "l1": sum(d) / len(d),
        "l2": sum(x * x for x in d) / len(d),
        "lInf": max(d),
        "cos": cos,
    }


def differing_bits(reference: np.ndarray, candidate: np.ndarray) -> int:
    bytes_r, bytes_c = (np.frombuffer(x.tobytes(), f"u{x.dtype.itemsize}") for x in (reference, candidate))
    return int(np.count_nonzero(bytes_r != bytes_c))


def assert_same(found: dict[str, float], wanted: dict[str, float]) -> None:
    for name in LOSSES:
        assert not math.isnan(found[name])
        # abs: what the rounding of 1 - cosine, and of subnormal differences, can amount to
        assert found[name] == pytest.approx(wanted[name], rel=1e-12, abs=4e-15 if name == "cos" else 0), name


@st.composite
def pairs(draw: st.DrawFn, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one dtype from all bit patterns; about half of the elements are equal."""
    dtype = dtype_of(name)
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    raw = np.dtype("bool") if name == "bool" else np.dtype(f"u{dtype.itemsize}")
    top = None if name == "bool" else {"int4": 15, "uint4": 15, "float4_e2m1fn": 15}.get(name)
    bits = npst.arrays(raw, shape, elements=None if top is None else st.integers(0, top))
    reference, other = draw(bits).view(dtype), draw(bits).view(dtype)
    keep = draw(npst.arrays(bool, shape))
    candidate = np.where(keep, reference, other).astype(dtype)
    if name == "float64":  # squares beyond float64 have a test of their own
        limit = (np.abs(reference) < 1e100) & (np.abs(candidate) < 1e100) & ~(np.abs(reference) < 1e-100)
        odd = ~np.isfinite(reference) | ~np.isfinite(candidate)
        reference, candidate = np.where(limit | odd, reference, 2.0), np.where(limit | odd, candidate, 2.5)
        candidate = np.where(np.isfinite(candidate) & (np.abs(candidate) > 1e100), 3.0, candidate)
        reference = np.where(np.isfinite(reference) & (np.abs(reference) > 1e100), 3.0, reference)
    return reference, candidate


@pytest.fixture(params=[False, True], ids=["numpy", "numba"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to add up: numpy's, and the loop that numba compiles for large outputs."""
    if request.param:
        pytest.importorskip("numba")
        monkeypatch.setattr(scan, "LARGE", 0)
    return bool(request.param)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", FLOATS + INTEGERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_loss_equals_its_definition(name: str, data: st.DataObject) -> None:
    reference, candidate = data.draw(pairs(name))
    atol = data.draw(st.sampled_from([0.0, 1e-5, 0.5, 3.0]))
    rtol = data.draw(st.sampled_from([0.0, 1e-5, 0.25]))
    with np.errstate(all="ignore"):
        wanted = plain(reference, candidate, atol, rtol)
        found = losses(reference, candidate, atol, rtol)
    assert_same(found.values, wanted)
    finite_r = np.array([math.isfinite(v.item()) for v in reference.reshape(-1)], bool)
    finite_c = np.array([math.isfinite(v.item()) for v in candidate.reshape(-1)], bool)
    assert found.non_finite_reference == np.count_nonzero(~finite_r)
    assert found.non_finite_candidate == np.count_nonzero(finite_r & ~finite_c)
    assert found.differing_bits == differing_bits(reference, candidate)


@cache
def many_blocks(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Two arrays, and the losses by their definition, which takes most of a second."""
    rng = np.random.default_rng(3)
    reference = (rng.standard_normal((3, 50_000)) * 20).astype(dtype_of(name))
    noise = rng.standard_normal(reference.shape) * (rng.random(reference.shape) < 0.3) * 5
    candidate = (reference.astype(np.float64) + noise).astype(reference.dtype)
    return reference, candidate, plain(reference, candidate, 1e-3, 0.1)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "name", ["float16", "float32", "float64", "bfloat16", "int8", "int32", "int64", "uint16"]
)
def test_large_and_strided_outputs_over_many_blocks(name: str) -> None:
    dtype = dtype_of(name)
    reference, candidate, wanted = many_blocks(name)
    found = losses(reference, candidate, 1e-3, 0.1)
    assert_same(found.values, wanted)
    assert found.worst is not None
    assert found.worst.difference == np.max(np.abs(candidate.astype(np.float64) - reference.astype(float)))
    assert reference[found.worst.index].item() == found.worst.reference
    # The same values in another memory layout: strided, so read block by block.
    wide_r, wide_c = np.zeros((3, 100_000), dtype), np.zeros((3, 100_000), dtype)
    wide_r[:, ::2], wide_c[:, ::2] = reference, candidate
    assert losses(wide_r[:, ::2], wide_c[:, ::2], 1e-3, 0.1) == found


@pytest.mark.parametrize(
    ("dtype", "reference", "candidate", "difference"),
    [
        (np.int64, 2**53, 2**53 + 1, 1),
        (np.int64, -(2**63), 2**63 - 1, 2**64 - 1),
        (np.uint64, 0, 2**64 - 1, 2**64 - 1),
        (np.uint64, 2**64 - 1, 2**64 - 2, 1),
    ],
)
def test_64_bit_integers_are_exact(dtype: type, reference: int, candidate: int, difference: int) -> None:
    found = losses(np.array([7, reference], dtype), np.array([7, candidate], dtype), atol=0.5, rtol=0.0)
    assert found.worst is not None
    assert (found.worst.index, found.worst.difference) == ((1,), difference)
    assert (found.worst.reference, found.worst.candidate) == (reference, candidate)
    assert found.values["lInf"] == float(difference)
    assert found.values["l0"] == 0.5


def test_e34_small_differences_pass_and_the_deciding_tolerance_is_named() -> None:
    reference, candidate = np.array([0.0, 1e-9, 1.0]), np.array([1e-7, 2e-9, 1.0])
    found = losses(reference, candidate, atol=1e-5, rtol=1e-5)
    assert found.values["l0"] == 0 and found.farthest is None
    assert found.worst is not None
    assert (found.worst.index, found.worst.decided_by, found.worst.allowed) == ((0,), "atol", 1e-5)
    relative = losses(np.array([1e3, 1.0]), np.array([1e3 + 1, 1.0001]), atol=1e-5, rtol=1e-2)
    assert relative.worst is not None and relative.values["l0"] == 0
    assert (relative.worst.decided_by, relative.worst.allowed) == ("rtol", 1e-5 + 10)


def test_l0_is_explained_by_the_element_farthest_beyond_its_own_bound() -> None:
    found = losses(np.array([1000.0, 0.0]), np.array([1005.0, 0.5]), atol=0.0, rtol=0.01)
    assert found.worst is not None and found.farthest is not None
    assert found.worst.index == (0,) and found.farthest.index == (1,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_e35_cosine_of_zero(dtype: type) -> None:
    zero, other = np.zeros(5, dtype), np.array([0, 0, 3, 0, 0], dtype)
    assert losses(zero, zero).values["cos"] == 0
    assert losses(zero, other).values["cos"] == 1
    assert losses(other, zero).values["cos"] == 1
    assert losses(zero, -zero).values["cos"] == 0


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e-20, 1.0, 1e200, 1e308])
@pytest.mark.parametrize("other", [1e-300, 1.0, 1e300])
def test_cosine_does_not_depend_on_scale(scale: float, other: float) -> None:
    reference, candidate = np.array([1.0, 0.0, -1.0, 0.5]), np.array([1.0, 0.25, -1.0, 0.5])
    wanted = losses(reference, candidate).values["cos"]
    found = losses(reference * scale, candidate * other).values["cos"]
    assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e307])
def test_relative_losses_do_not_depend_on_scale(scale: float) -> None:
    reference, candidate = np.array([1.0, 0.0, -1.0, 0.5]), np.array([1.0, 0.25, -1.0, 0.5])
    found = losses(reference * scale, candidate * scale).values
    assert found["rel_l2"] == pytest.approx(0.25 / 1.5, rel=1e-6)
    assert found["rel_lInf"] == pytest.approx(0.25, rel=1e-6)


def test_relative_losses_beside_a_reference_of_zeros() -> None:
    zero, one = np.zeros(3, np.float32), np.array([0, 1, 0], np.float32)
    for name in ("rel_l2", "rel_lInf"):
        assert losses(zero, zero).values[name] == 0
        assert losses(zero, one).values[name] == math.inf
        assert losses(one, zero).values[name] == 1


def test_overflowing_differences_are_infinite_not_nan() -> None:
    found = losses(np.array([1.7e308, 1.0]), np.array([-1.7e308, 1.0]))
    assert found.values["lInf"] == math.inf and found.values["l2"] == math.inf
    assert found.values["l0"] == 0.5 and found.values["cos"] == pytest.approx(2.0)
    assert found.non_finite_candidate == 0


def test_signed_zero_differs_in_bits_only() -> None:
    found = losses(np.array([0.0, 1.0], np.float32), np.array([-0.0, 1.0], np.float32))
    assert found.differing_bits == 1
    assert found.values == dict.fromkeys(LOSSES, 0.0) | {"exact": 0.5}
    assert found.worst is not None and found.worst.index == (0,)


def test_non_finite_elements_are_counted_by_whose_they_are() -> None:
    nan, inf = math.nan, math.inf
    reference = np.array([nan, inf, -inf, 1.0, 2.0, inf, 3.0], np.float32)
    candidate = np.array([nan, inf, inf, nan, inf, 0.0, 3.0], np.float32)
    found = losses(reference, candidate)
    assert (found.non_finite_reference, found.non_finite_candidate, found.compared) == (4, 2, 3)
    assert found.values == dict.fromkeys(LOSSES, inf) | {"l0": 2 / 3, "exact": 4 / 7}
    assert found.worst is not None and found.worst.index == (3,)
    assert found.bad_reference is not None and found.bad_reference.index == (0,)


def test_all_nan_outputs_never_look_like_a_match() -> None:
    nothing = np.full((2, 3), np.nan, np.float16)
    found = losses(nothing, nothing)
    assert found.values["l0"] == 1.0 and found.values["lInf"] == math.inf and found.compared == 0


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2, np.complex64), np.zeros(2, np.complex64)),
        (np.array(["a"]), np.array(["a"])),
    ],
)
def test_what_cannot_be_compared_is_refused(reference: np.ndarray, candidate: np.ndarray) -> None:
    with pytest.raises(BadInput):
        losses(reference, candidate)
    with pytest.raises(BadInput, match="atol"):
        losses(np.zeros(2), np.zeros(2), atol=math.nan)


def test_no_second_copy_of_the_outputs() -> None:
    reference = np.zeros(12_000_000, np.float32)
    candidate = reference + np.float32(1)
    for layout in (slice(None), slice(None, None, 2)):
        tracemalloc.start()
        losses(reference[layout], candidate[layout])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6  # whatever the size: these are 48 and 24 MB a side
