"""Where the time of a network goes on a GPU: its kernels under some routes, as CUDA's profiler sees them.

    python -m tests.gpu.kernels FOLDER NAME...

Each workload is exported, rewritten for float16 and fused attention, and run by ONNX Runtime alone: no tune,
one load of each, so the figures are worth less than those of a duel; they tell what the time is made of. They
go to FOLDER/gpu_kernels.json, and need torch, for its profiler, and onnxruntime-gpu.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from routetune.tasks.engines.calibration import prepare
from routetune.tasks.engines.qdq import rewrite
from routetune.tasks.targets.quantization import Quantization

from tests.gpu import workloads

Options = Mapping[str, str]
WARM_UP, TIMED, PROFILED = 10, 100, 5
#: Kernels that are listed of each route, those that take longest.
LISTED = 12
GRAPH = {"enable_cuda_graph": "1"}
#: The routes of convolutions that are looked at, by their options of the provider.
LOOKED_AT = {
    "graph": GRAPH,
    "HEURISTIC, graph": {**GRAPH, "cudnn_conv_algo_search": "HEURISTIC"},
    "NHWC, graph": {**GRAPH, "prefer_nhwc": "1"},
    "NHWC, fused bias, graph": {**GRAPH, "prefer_nhwc": "1", "fuse_conv_bias": "1"},
}
#: What is rewritten and how, and the options of the provider beside it.
CASES = {
    workloads.CONVOLUTIONS: [("", "", {})]
    + [(places, label, options) for places in ("", "half") for label, options in LOOKED_AT.items()],
    workloads.PRODUCTS: [("", "", {}), ("half fused", "", {})]
    + [(places, "graph", GRAPH) for places in ("", "half", "fused", "half fused")],
}


def measure(name: str, folder: Path) -> list[dict[str, Any]]:
    """One row for each case of a workload."""
    model = workloads.export(name, folder)
    prepared = folder / f"{name}.prepared.onnx"
    prepare(model, prepared, per_channel=False)
    rows = []
    for places, label, options in CASES[workloads.WORKLOADS[name].routes]:
        path = _rewritten(prepared, places) if places else model
        rows.append({"places": places, "route": label} | _measured(path, options, folder / "optimised.onnx"))
        print(name, places, label, rows[-1]["milliseconds"], flush=True)
    return rows


def _rewritten(prepared: Path, places: str) -> Path:
    path = prepared.with_suffix(f".{places.replace(' ', '_')}.onnx")
    on = {place: place in places for place in ("half", "fused")}
    settings = Quantization().settings("onnxruntime")
    rewrite(str(prepared), "", {"nodes": [], "dynamic": False, **on}, settings, str(path))
    return path


def _measured(model: Path, options: Options, optimised: Path) -> dict[str, Any]:
    """Its time on the host's clock, its kernels by time, and the operators of the optimised model."""
    wanted = onnxruntime.SessionOptions()
    wanted.optimized_model_filepath = str(optimised)
    session = onnxruntime.InferenceSession(model, wanted, [("CUDAExecutionProvider", dict(options))])
    nodes = onnx.load(optimised, load_external_data=False).graph.node
    binding, times = _bound(session), []
    for _ in range(WARM_UP + TIMED):
        began = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - began)
    kernels = _kernels(lambda: session.run_with_iobinding(binding))
    longest = sorted(((us, count, name) for name, (us, count) in kernels.items()), reverse=True)
    operators = Counter(f"{node.domain}::{node.op_type}".strip(":") for node in nodes)
    return {
        "milliseconds": round(statistics.median(times[WARM_UP:]) * 1e3, 4),
        "kernels_us": round(sum(us for us, _ in kernels.values()), 1),
        "launches": sum(count for _, count in kernels.values()),
        "operators": dict(operators.most_common()),
        "longest": longest[:LISTED],
    }


def _bound(session: onnxruntime.InferenceSession) -> onnxruntime.IOBinding:
    """Inputs and outputs on the device, which it holds; a CUDA graph needs both to stay where they are."""
    rng, value, binding = np.random.default_rng(0), onnxruntime.OrtValue, session.io_binding()
    for one in session.get_inputs():
        drawn = rng.integers(0, 1000, one.shape) if "int64" in one.type else rng.standard_normal(one.shape)
        array = drawn.astype(np.int64 if "int64" in one.type else np.float32)
        binding.bind_ortvalue_input(one.name, value.ortvalue_from_numpy(array, "cuda", 0))
    for one in session.get_outputs():
        held = value.ortvalue_from_shape_and_type(one.shape, np.float32, "cuda", 0)
        binding.bind_ortvalue_output(one.name, held)
    return binding


def _kernels(run: Any) -> dict[str, tuple[float, int]]:
    """Microseconds and launches of each kernel in one run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED):
            run()
        torch.cuda.synchronize()
    spent, counts = Counter[str](), Counter[str]()
    for event in profiled.events():
        if event.device_time_total:
            spent[event.name[:110]] += event.device_time_total
            counts[event.name[:110]] += 1
    return {name: (round(spent[name] / PROFILED, 1), round(counts[name] / PROFILED)) for name in spent}


def main(arguments: Sequence[str] | None = None) -> int:
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=workloads.WORKLOADS)
    given = parser.parse_args(arguments)
    results = given.folder / "gpu_kernels.json"
    document = json.loads(results.read_text()) if results.exists() else {"networks": {}}
    document |= {
        "command": "python -m tests.gpu.kernels FOLDER NAME...",
        "device": torch.cuda.get_device_name(),
        "onnxruntime": onnxruntime.__version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    for name in given.names:
        document["networks"][name] = measure(name, given.folder)
        results.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
