"""Top-k agreement against its definition, and what ties and non-finite rows do to it."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from routetune.tasks.verdicts.topk import top_k

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "int8",
    "int64",
    "uint4",
]


def plain(reference: np.ndarray, candidate: np.ndarray, k: int) -> float:
    """The definition, row by row in Python."""
    if not reference.size:
        return 0.0
    losses = []
    rows = reference.reshape(-1, reference.shape[-1] if reference.ndim else 1)
    for r, c in zip(rows.tolist(), candidate.reshape(rows.shape).tolist(), strict=True):
        if not all(map(math.isfinite, r)):
            continue
        if not all(map(math.isfinite, c)):
            return math.inf
        n = min(k, len(r))
        least = sorted(r, reverse=True)[n - 1]
        chosen = sorted(range(len(c)), key=lambda i: (-c[i], i))[:n]
        losses.append(1 - sum(r[i] >= least for i in chosen) / n)
    return sum(losses) / len(losses) if losses else math.inf


@pytest.mark.parametrize("name", DTYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_equals_its_definition(name: str, data: st.DataObject) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    bits = npst.arrays(f"u{dtype.itemsize}", shape, elements=st.integers(0, 15) if name == "uint4" else None)
    reference, other = data.draw(bits).view(dtype), data.draw(bits).view(dtype)
    candidate = np.where(data.draw(npst.arrays(bool, shape)), reference, other).astype(dtype)
    k = data.draw(st.integers(1, 7))
    found = top_k(reference, candidate, k)
    assert found.loss == pytest.approx(plain(reference, candidate, k), abs=1e-12)
    assert (found.worst is None) == (found.disagreeing == 0)


def test_the_worst_row_is_named() -> None:
    reference = np.array([[[1, 2, 3, 4], [4, 3, 2, 1]]], np.float32)
    candidate = np.array([[[1, 2, 3, 4], [1, 2, 3, 4]]], np.float32)
    found = top_k(reference, candidate, 2)
    assert (found.loss, found.rows, found.disagreeing) == (0.5, 2, 1)
    assert found.worst == {"index": [0, 1], "reference": [0, 1], "candidate": [3, 2]}


def test_a_constant_candidate_cannot_profit_from_ties() -> None:
    reference = np.eye(8, dtype=np.float32)
    assert top_k(reference, np.zeros_like(reference), 1).loss == 7 / 8


def test_large_outputs_over_many_blocks() -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((3000, 100)).astype(np.float32)
    candidate = reference + rng.standard_normal(reference.shape).astype(np.float32) * 0.1
    assert top_k(reference, candidate, 5).loss == pytest.approx(plain(reference, candidate, 5))
