"""Ten networks as people run them, exported on the spot with seeded random weights.

    python -m tests.gpu.workloads FOLDER [NAME...]

Needs torch, torchvision and transformers. Weights mean nothing, but every output tells inputs apart: the
statistics of batch normalisations come from a pass over seeded noise, and heads that start as zeros are drawn
too. Each leaves NAME.onnx and the target NAME.toml, whose routes are swept by `tests.gpu.sweep`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

#: Every knob here acts on some network; those of convolutions do nothing to the others.
CONVOLUTIONS = (
    "-use_tf32=[1|0]",
    "-prefer_nhwc=[0|1]",
    "-fuse_conv_bias=[0|1]",
    "-enable_cuda_graph=[0|1]",
    "-cudnn_conv_algo_search=[EXHAUSTIVE|HEURISTIC]",
    "-cudnn_conv_use_max_workspace=[1|0]",
    "-graph_optimization_level=[basic|all]",
)
PRODUCTS = (
    "-use_tf32=[1|0]",
    "-enable_cuda_graph=[0|1]",
    "-graph_optimization_level=[basic|all]",
    "-optimization.enable_gelu_approximation=[0|1]",
    "-SkipLayerNormFusion=[on|off]",
    "-BiasGeluFusion=[on|off]",
    "-MatMulAddFusion=[on|off]",
)
#: What routes are timed beside in a sweep: no launches to wait for, nothing to search at load.
ANCHORS = {
    CONVOLUTIONS: "-enable_cuda_graph=1 -cudnn_conv_algo_search=HEURISTIC",
    PRODUCTS: "-enable_cuda_graph=1",
}
TARGET = """\
# {about}
schema = 1
name = "{name}"
model = "{name}.onnx"
backend = "onnxruntime"

[accuracy]
metric = "rel_lInf"
tolerance = 1e-3

[search]
routes = {routes}
algorithm = "{algorithm}"

[budget]
trials = {trials}
seconds = 3600
trial_seconds = 60

[timing]
seconds = 0.8
width = 0.01
finalists = 3
loads = 4

[engine]
device = "cuda:0"
"""


@dataclass(frozen=True)
class Workload:
    """A network, what to feed it, and the routes to sweep.

    Attributes:
        make: gives the module in evaluation mode and its inputs by name.
        attends: it has attention, which can be fused.
    """

    about: str
    make: Callable[[], tuple[Any, dict[str, Any]]]
    routes: tuple[str, ...]
    outputs: tuple[str, ...] = field(default=("y",))
    attends: bool = False


def _vision(name: str, batch: int, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def make() -> tuple[Any, dict[str, Any]]:
        import torch
        import torchvision

        module = getattr(torchvision.models, name)(weights=None, **options)
        for layer in module.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.momentum = None  # the mean over all passes
            if isinstance(layer, torch.nn.Linear) and not layer.weight.any():
                torch.nn.init.normal_(layer.weight, std=0.02)
        with torch.no_grad():
            module.train()(torch.randn(8, 3, 224, 224))
        return module.eval(), {"x": torch.randn(batch, 3, 224, 224)}

    return make


def _bert(batch: int) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def make() -> tuple[Any, dict[str, Any]]:
        import torch
        from transformers import BertConfig, BertModel

        class Encoder(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bert = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False)

            def forward(self, input_ids: Any) -> Any:
                return self.bert(input_ids=input_ids).last_hidden_state

        return Encoder().eval(), {"input_ids": torch.randint(0, 30_522, (batch, 128))}

    return make


def _decoder() -> tuple[Any, dict[str, Any]]:
    """One step of a GPT-2-sized decoder: 12 layers, one token after 128."""
    import torch
    from torch import nn

    layers, hidden, heads, past = 12, 768, 12, 128
    size = hidden // heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.merge = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x: Any, keys: Any, values: Any) -> Any:
            parts = self.qkv(self.before(x)).reshape(1, 1, 3, heads, size).permute(2, 0, 3, 1, 4)
            keys, values = torch.cat([keys, parts[1]], 2), torch.cat([values, parts[2]], 2)
            weights = torch.softmax(parts[0] @ keys.transpose(2, 3) / size**0.5, -1)
            x = x + self.merge((weights @ values).transpose(1, 2).reshape(1, 1, hidden))
            x = x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))
            return x, keys, values

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(50_257, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(hidden)

        def forward(self, token: Any, keys: Any, values: Any) -> Any:
            x, kept = self.tokens(token), []
            for at, block in enumerate(self.blocks):
                x, *pair = block(x, keys[at], values[at])
                kept.append(pair)
            logits = self.norm(x) @ self.tokens.weight.T
            return logits, torch.stack([k for k, _ in kept]), torch.stack([v for _, v in kept])

    cache = (layers, 1, heads, past, size)
    inputs = {"token": torch.tensor([[7]]), "keys": torch.randn(cache), "values": torch.randn(cache)}
    return Decoder().eval(), inputs


def _unet() -> tuple[Any, dict[str, Any]]:
    import torch
    from torch import nn

    def twice(a: int, b: int) -> Any:
        convs = [nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)]
        for conv in convs:
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        return nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU())

    class UNet(nn.Module):
        def __init__(self, width: int = 32, depth: int = 4) -> None:
            super().__init__()
            sizes = [width << level for level in range(depth + 1)]
            self.down = nn.ModuleList(twice(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
            self.up = nn.ModuleList(twice(a + b, a) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True))
            self.last = nn.Conv2d(width, 2, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for level, block in enumerate(self.down):
                x = block(x if not level else nn.functional.max_pool2d(x, 2))
                kept.append(x)
            kept.pop()
            for block in self.up:
                x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
            return self.last(x)

    return UNet().eval(), {"x": torch.randn(1, 3, 256, 256)}


def _dlrm() -> tuple[Any, dict[str, Any]]:
    import torch
    from torch import nn

    tables, rows, size, batch = 26, 10_000, 64, 256

    def dense(*sizes: int) -> Any:
        return nn.Sequential(*[layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())])

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(rows, size) for _ in range(tables))
            self.bottom = dense(13, 512, 256, size)
            self.top = dense(size + (tables + 1) ** 2, 1024, 1024, 512)
            self.last = nn.Linear(512, 1)

        def forward(self, x: Any, ids: Any) -> Any:
            x = self.bottom(x)
            every = torch.stack([x, *(table(ids[:, at]) for at, table in enumerate(self.tables))], 1)
            pairs = torch.flatten(every @ every.transpose(1, 2), 1)
            return self.last(self.top(torch.cat([x, pairs], 1)))

    ids = torch.randint(0, rows, (batch, tables))
    return Recommender().eval(), {"x": torch.randn(batch, 13), "ids": ids}


WORKLOADS: dict[str, Workload] = {
    "resnet50_b1": Workload("ResNet-50, one image", _vision("resnet50", 1), CONVOLUTIONS),
    "mobilenet_b1": Workload("MobileNetV3, one image", _vision("mobilenet_v3_large", 1), CONVOLUTIONS),
    "bert_b1": Workload("BERT-base, one text of 128 tokens", _bert(1), PRODUCTS, attends=True),
    "dlrm_b256": Workload("A DLRM-like network", _dlrm, PRODUCTS),
    "unet_b1": Workload("A UNet-like network, one image", _unet, CONVOLUTIONS),
    "resnet50_b8": Workload("ResNet-50, eight images", _vision("resnet50", 8), CONVOLUTIONS),
    "vit_b8": Workload("ViT-B/16, eight images", _vision("vit_b_16", 8), PRODUCTS, attends=True),
    "decoder_b1": Workload(
        "One step of a GPT-2-like decoder",
        _decoder,
        PRODUCTS,
        outputs=("logits", "keys_out", "values_out"),
        attends=True,
    ),
    "bert_b8": Workload("BERT-base, eight texts of 128 tokens", _bert(8), PRODUCTS, attends=True),
    "efficientnet_b8": Workload("EfficientNet-B0, eight images", _vision("efficientnet_b0", 8), CONVOLUTIONS),
}


def target(name: str, algorithm: str = "full", trials: int = 200, routes: Sequence[str] = ()) -> str:
    """The target file of a workload, for its own routes or those given."""
    of = WORKLOADS[name]
    routes = "[" + ", ".join(f'"{route}"' for route in routes or of.routes) + "]"
    return TARGET.format(about=of.about, name=name, routes=routes, algorithm=algorithm, trials=trials)


def export(name: str, folder: Path) -> Path:
    """Write NAME.onnx and NAME.toml; a model that is there is left alone."""
    path = folder / f"{name}.onnx"
    path.with_suffix(".toml").write_text(target(name))
    if path.exists():
        return path
    import torch

    torch.manual_seed(0)
    module, inputs = WORKLOADS[name].make()
    with torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            output_names=list(WORKLOADS[name].outputs),
        )
    part = path.with_suffix(".part")
    program.save(part, external_data=False)
    part.rename(path)
    return path


if __name__ == "__main__":
    for chosen in sys.argv[2:] or WORKLOADS:
        print(export(chosen, Path(sys.argv[1])))
