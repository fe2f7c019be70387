"""Errors that say that memory does not suffice, in the words of the libraries."""

from __future__ import annotations

import pytest
from routetune.tasks.engines.memory import lacks_memory


@pytest.mark.parametrize(("size", "lacking"), [(1 << 40, True), (1 << 48, True), ((1 << 64) - 8, False)])
@pytest.mark.parametrize(
    "said",
    [
        "bfc_arena.cc:360 AllocateRawInternal Failed to allocate memory for requested buffer of size {}",
        "bfc_arena.cc:377 Available memory of 17179869184 is smaller than requested bytes of {}",
    ],
)
def test_more_than_any_machine_has_is_not_lacking(said: str, size: int, lacking: bool) -> None:
    assert lacks_memory(said.format(size)) == lacking


@pytest.mark.parametrize(
    ("said", "lacking"),
    [
        ("CUDA failure 2: out of memory ; GPU=0", True),
        ("CUDNN failure 4000: CUDNN_STATUS_ALLOC_FAILED ; GPU=0", True),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", True),
        ("CUDNN_FE failure 4: INVALID_VARIANT_PACK ; GPU=0", False),
    ],
)
def test_what_libraries_of_gpus_say(said: str, lacking: bool) -> None:
    assert lacks_memory(said) == lacking
