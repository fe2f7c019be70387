"""encoder: a small transformer encoder over token ids, with seeded random weights.

Laid out as exporters of opset 12 do: layer normalisation and the GELU come as their elementary operators,
position ids are computed from shapes, and every projection is a MatMul followed by an Add; so a compiler has
fusions to find. The weights mean nothing, but are scaled so that every layer, the mask and every token sway
the outputs.

    input_ids, attention_mask: int64 [batch, sequence], 1 <= sequence <= 128
    last_hidden_state: float32 [batch, sequence, hidden]  logits: float32 [batch, 8], from the first token
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.data.models.files import uniform, write_arrays, write_model

if TYPE_CHECKING:
    import onnx

    Array = np.ndarray[Any, Any]

SEED = 0
VOCABULARY, POSITIONS, CLASSES = 512, 128, 8
PAD, FIRST, LAST, WORDS = 0, 1, 2, 3  # reserved token ids; words begin at 3

SENTENCES = (
    "a route names the options that a compiler is given",
    "the default route names nothing and is what everybody runs until somebody measures",
    "an engine that was checked and timed is the one that is published because building it again "
    "gives other bytes",
    "warm up",
    "two engines are timed side by side in short turns so that whatever slows the machine slows both of "
    "them alike and the ratio of the two medians says which one is faster while the absolute figures say "
    "little",
    "a tolerance of zero compares bits",
    "when no candidate beats the default by more than the noise the honest answer is the default and the "
    "report says so in one line together with the interval that was found and the number of rounds it took "
    "to find it",
    "the first token of every row stands for the whole sentence and feeds the classifier",
)


@dataclass(frozen=True)
class Size:
    """How large an encoder is: layers, width of the tokens, heads of attention, width between projections."""

    layers: int
    hidden: int
    heads: int
    inner: int


SMALL = Size(layers=2, hidden=128, heads=4, inner=512)


class _Graph:
    """Collects nodes and weights; every method returns the name of the tensor it adds."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.random = np.random.RandomState(SEED)

    def constant(self, name: str, value: Array) -> str:
        self.weights[name] = value
        return name

    def scalar(self, value: float) -> str:
        return self.constant(f"scalar_{value}", np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def add(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(operator, list(inputs), [f"{name}.out"], name, **attributes))
        return f"{name}.out"

    def projection(self, name: str, source: str, width_in: int, width_out: int, gain: float = 1.0) -> str:
        """x @ W + b, with W of variance gain**2 / width_in."""
        bound = gain * float(np.sqrt(3.0 / width_in))
        weight = self.constant(f"{name}.weight", uniform(self.random, (width_in, width_out), -bound, bound))
        bias = self.constant(f"{name}.bias", uniform(self.random, (width_out,), -0.1, 0.1))
        return self.add("Add", f"{name}.add", self.add("MatMul", f"{name}.matmul", source, weight), bias)

    def normalised(self, name: str, source: str) -> str:
        """Layer normalisation over the last axis, spelled out."""
        scale = self.constant(f"{name}.weight", uniform(self.random, (self.size.hidden,), 0.7, 1.3))
        shift = self.constant(f"{name}.bias", uniform(self.random, (self.size.hidden,), -0.2, 0.2))
        mean = self.add("ReduceMean", f"{name}.mean", source, axes=[-1], keepdims=1)
        centred = self.add("Sub", f"{name}.sub", source, mean)
        squares = self.add("Pow", f"{name}.pow", centred, self.scalar(2.0))
        variance = self.add("ReduceMean", f"{name}.variance", squares, axes=[-1], keepdims=1)
        moved = self.add("Add", f"{name}.epsilon", variance, self.scalar(1e-12))
        quotient = self.add("Div", f"{name}.div", centred, self.add("Sqrt", f"{name}.sqrt", moved))
        return self.add("Add", f"{name}.shift", self.add("Mul", f"{name}.scale", quotient, scale), shift)

    def gelu(self, name: str, source: str) -> str:
        """x * (1 + erf(x / sqrt 2)) / 2, spelled out."""
        scaled = self.add("Div", f"{name}.div", source, self.scalar(1.4142135381698608))
        error = self.add("Erf", f"{name}.erf", scaled)
        weight = self.add("Add", f"{name}.add", error, self.scalar(1.0))
        product = self.add("Mul", f"{name}.mul", source, weight)
        return self.add("Mul", f"{name}.half", product, self.scalar(0.5))


def _position_ids(graph: _Graph) -> str:
    """0, 1, ..., sequence - 1 for every row, [batch, sequence], computed from the shape of the ids."""
    zero, one = (graph.constant(name, np.array(value, np.int64)) for name, value in (("zero", 0), ("one", 1)))
    shape = graph.add("Shape", "ids.shape", "input_ids")
    batch = graph.add("Gather", "ids.batch", shape, zero, axis=0)
    length = graph.add("Gather", "ids.length", shape, one, axis=0)
    sizes = [graph.add("Unsqueeze", f"{size}.vector", size, axes=[0]) for size in (batch, length)]
    row = graph.add("Unsqueeze", "ids.row", graph.add("Range", "ids.range", zero, length, one), axes=[0])
    return graph.add("Expand", "ids.positions", row, graph.add("Concat", "ids.grid", *sizes, axis=0))


def _embeddings(graph: _Graph) -> str:
    words = graph.constant("words", uniform(graph.random, (VOCABULARY, graph.size.hidden), -1.0, 1.0))
    positions = graph.constant("positions", uniform(graph.random, (POSITIONS, graph.size.hidden), -0.5, 0.5))
    word = graph.add("Gather", "words.gather", words, "input_ids", axis=0)
    position = graph.add("Gather", "positions.gather", positions, _position_ids(graph), axis=0)
    return graph.normalised("embeddings.norm", graph.add("Add", "embeddings", word, position))


def _mask(graph: _Graph) -> str:
    """0 where a token counts and -10000 where it is padding, [batch, 1, 1, sequence]."""
    row = graph.add("Unsqueeze", "mask.row", "attention_mask", axes=[1])
    grid = graph.add("Unsqueeze", "mask.grid", row, axes=[2])
    kept = graph.add("Cast", "mask.cast", grid, to=1)
    padding = graph.add("Sub", "mask.padding", graph.scalar(1.0), kept)
    return graph.add("Mul", "mask", padding, graph.scalar(-10000.0))


def _attention(graph: _Graph, name: str, source: str, mask: str) -> str:
    hidden, count = graph.size.hidden, graph.size.heads
    head = hidden // count

    def heads(part: str, gain: float, order: list[int]) -> str:
        wide = graph.projection(f"{name}.{part}", source, hidden, hidden, gain)
        split = graph.add("Reshape", f"{name}.{part}.split", wide, graph.integers(0, 0, count, head))
        return graph.add("Transpose", f"{name}.{part}.heads", split, perm=order)

    # A gain above 1 makes the softmax prefer some tokens; at 1 it nearly averages and the mask does little.
    query = heads("query", 1.5, [0, 2, 1, 3])
    key = heads("key", 1.5, [0, 2, 3, 1])
    value = heads("value", 1.0, [0, 2, 1, 3])
    scores = graph.add("MatMul", f"{name}.scores", query, key)
    scaled = graph.add("Div", f"{name}.scaled", scores, graph.scalar(float(np.float32(np.sqrt(head)))))
    masked = graph.add("Add", f"{name}.masked", scaled, mask)
    weights = graph.add("Softmax", f"{name}.softmax", masked, axis=3)
    mixed = graph.add("MatMul", f"{name}.mixed", weights, value)
    back = graph.add("Transpose", f"{name}.back", mixed, perm=[0, 2, 1, 3])
    joined = graph.add("Reshape", f"{name}.joined", back, graph.integers(0, 0, hidden))
    return graph.projection(f"{name}.output", joined, hidden, hidden)


def _layer(graph: _Graph, name: str, source: str, mask: str) -> str:
    hidden, wide = graph.size.hidden, graph.size.inner
    attended = _attention(graph, f"{name}.attention", source, mask)
    middle = graph.normalised(
        f"{name}.attention.norm", graph.add("Add", f"{name}.attention.residual", attended, source)
    )
    inner = graph.gelu(f"{name}.gelu", graph.projection(f"{name}.inner", middle, hidden, wide))
    outer = graph.projection(f"{name}.outer", inner, wide, hidden)
    return graph.normalised(f"{name}.norm", graph.add("Add", f"{name}.residual", outer, middle))


def build(size: Size = SMALL) -> onnx.ModelProto:
    """Build the whole model; see the top of the file for its inputs and outputs."""
    from onnx import TensorProto, helper, numpy_helper

    graph = _Graph(size)
    hidden, mask = _embeddings(graph), _mask(graph)
    for index in range(size.layers):
        hidden = _layer(graph, f"layer{index}", hidden, mask)
    graph.nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"], "last_hidden_state"))
    first = graph.add("Gather", "first", hidden, "zero", axis=1)
    logits = graph.projection("classifier", first, size.hidden, CLASSES)
    graph.nodes.append(helper.make_node("Identity", [logits], ["logits"], "logits"))
    tokens: list[str | int] = ["batch", "sequence"]
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, tokens) for name in names]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*tokens, size.hidden]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES]),
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in graph.weights.items()]
    body = helper.make_graph(graph.nodes, "encoder", inputs, outputs, stored)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


def tokenise(sentence: str, length: int) -> tuple[list[int], list[int]]:
    """Hash each word to an id, frame the sentence, pad it to `length`; returns the ids and their mask."""
    words = [WORDS + zlib.crc32(word.encode()) % (VOCABULARY - WORDS) for word in sentence.split()]
    ids = [FIRST, *words[: length - 2], LAST]
    padding = length - len(ids)
    return ids + [PAD] * padding, [1] * len(ids) + [0] * padding


def make_inputs(path: Path) -> Path:
    """Write the sentences as ids and masks, int64 [8, 64]."""
    rows = [tokenise(sentence, 64) for sentence in SENTENCES]
    return write_arrays(
        {
            "input_ids": np.array([ids for ids, _ in rows], np.int64),
            "attention_mask": np.array([mask for _, mask in rows], np.int64),
        },
        path,
    )


def make(home: Path) -> list[Path]:
    """Write `models/encoder.onnx` and `inputs/encoder.npz` under `home`."""
    return [
        write_model(build(), home / "models" / "encoder.onnx"),
        make_inputs(home / "inputs" / "encoder.npz"),
    ]


if __name__ == "__main__":
    for written in make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]):
        print(written)
