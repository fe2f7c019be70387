"""Identities from inspector texts in the forms that NVIDIA documents for TensorRT 10 and 11."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from routetune.tasks.engines.tensorrt.identity import identity

Document = dict[str, Any]


def tensor(name: str, kind: str = "Channel major FP32 format", **more: Any) -> Document:
    return {"Name": name, "Location": "Device", "Dimensions": [1, 8], "Format/Datatype": kind, **more}


def layer(name: str, reads: str, writes: str, **more: Any) -> Document:
    return {
        "Name": name,
        "LayerType": "CaskConvolution",
        "Inputs": [tensor(reads)],
        "Outputs": [tensor(writes)],
        "ParameterType": "Convolution",
        "Kernel": [3, 3],
        "TacticName": "sm80_xmma_fprop_implicit_gemm_tf32",
        "TacticValue": "0x30b2e4d4c4b8a9d1",
        "StreamId": 0,
        "Metadata": f"[ONNX Layer: {name}]",
        **more,
    }


ELEVEN: Document = {
    "Layers": [layer("conv1 + relu", "x", "a"), layer("conv2", "a", "y")],
    "I/O Tensors": [
        {"Name": name, "IOMode": mode, "DataType": "Float", "Dimensions": [1, 8], "ProfileInfo": []}
        for name, mode in (("x", "Input"), ("y", "Output"))
    ],
}
TEN = {"Layers": ELEVEN["Layers"], "Bindings": ["x", "y"]}


def of(document: Any) -> str | None:
    return identity(json.dumps(document))


@pytest.mark.parametrize("document", [TEN, ELEVEN], ids=["10", "11"])
def test_names_that_the_builder_makes_up_and_times_do_not_count(document: Document) -> None:
    other = copy.deepcopy(document)
    first, second = other["Layers"]
    first["Outputs"][0]["Name"] = second["Inputs"][0]["Name"] = "another name"
    first |= {"Name": "fused", "Metadata": "", "AverageTimeMs": 0.3}
    assert of(other) == of(document)
    assert of(document) is not None


def _change(where: str, value: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document["Layers"][0][where] = value

    return change


def _swap(document: Document) -> None:
    document["Layers"].reverse()


def _format(document: Document) -> None:
    document["Layers"][0]["Inputs"][0]["Format/Datatype"] = "Channel major FP16 format"


def _size(document: Document) -> None:
    document["Layers"][1]["Inputs"][0]["Dimensions"] = [2, 8]


def _wiring(document: Document) -> None:
    document["Layers"][1]["Inputs"][0]["Name"] = "x"


def _edge(document: Document) -> None:
    document["I/O Tensors"][0]["ProfileInfo"] = [{"MinShape": [1, 8]}]


@pytest.mark.parametrize(
    "change",
    [
        _change("TacticName", "another tactic"),
        _change("TacticValue", "0x1"),
        _change("Kernel", [1, 1]),
        _change("StreamId", 1),
        _change("LayerType", "Reformat"),
        *(_swap, _format, _size, _wiring, _edge),
    ],
)
def test_what_is_computed_and_how_counts(change: Callable[[Document], None]) -> None:
    other = copy.deepcopy(ELEVEN)
    change(other)
    assert of(other) not in (of(ELEVEN), None)


@pytest.mark.parametrize(
    "opaque",
    [
        layer("{ForeignNode[/encoder/MatMul.../head/Add]}", "a", "y", LayerType="Myelin"),
        layer("{ForeignNode[a...b]}", "a", "y"),
        layer("fused", "a", "y", LayerType="kgen", TacticName="__myl_MulAdd_0x1f"),
        layer("__myl_AddResMul_myl0_3", "a", "y"),
        layer("mine", "a", "y", LayerType="PluginV3"),
        "conv2",
    ],
    ids=["Myelin", "ForeignNode", "kgen", "__myl_", "plugin", "names only"],
)
def test_a_block_that_is_not_shown_makes_the_identity_unknown(opaque: Any) -> None:
    assert of(ELEVEN | {"Layers": [ELEVEN["Layers"][0], opaque]}) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"Layers": []}', '{"Layers": [{}]}', "no JSON"])
def test_a_text_that_tells_nothing_is_no_identity(text: str) -> None:
    assert identity(text) is None
