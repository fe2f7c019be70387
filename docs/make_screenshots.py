"""Make the pictures of docs/images: a tune, shown by Prefect's own pages in a browser without a screen.

    python docs/make_screenshots.py

Needs Chromium. Starts a Prefect server of its own, tunes the sample model, and ends it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
sys.path.insert(0, str(ROOT))

from tests.operations.site import Server, browse, serving  # noqa: E402

TARGET = """
schema = 1
name = "digits"
model = "digits_cnn.onnx"
backend = "onnxruntime"
[shapes]
x = "8x1x8x8"
[reference]
samples = 4
[accuracy]
metric = "lInf"
tolerance = 1e-5
[search]
routes = [
    "-graph_optimization_level=[basic|all]",
    "-session.disable_prepacking=[0|1]",
    "-intra_op_num_threads=[0|1]",
]
algorithm = "full"
[timing]
seconds = 0.1
loads = 2
finalists = 2
confidence = 0.8
"""


def tune(server: Server, folder: Path) -> str:
    """Tune the sample model twice, so that stages are answered from the store; the id of the second run."""
    shutil.copy(ROOT / "data/models/digits_cnn.onnx", folder)
    (target := folder / "digits.toml").write_text(TARGET)
    variables = {
        "ROUTETUNE_STORE": str(folder / "store"),
        "XDG_RUNTIME_DIR": str(folder),
        "PREFECT_LOGGING_LEVEL": "INFO",
    }
    command = [sys.executable, "-m", "routetune.flows", "tune", str(target), "--force"]
    for _ in range(2):
        subprocess.run(command, env=os.environ | server.variables | variables, check=True, timeout=400)
    [run] = server.post("/flow_runs/filter", sort="START_TIME_DESC", limit=1)
    return str(run["id"])


def artifact(server: Server) -> str:
    """The id of the latest summary."""
    body = {"key": {"any_": ["summary-digits"]}}
    [found] = server.post("/artifacts/filter", artifacts=body, sort="CREATED_DESC", limit=1)
    return str(found["id"])


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "server") as server:
        run = tune(server, Path(folder))
        pages = server.url.removesuffix("/api")
        browse(f"{pages}/runs/flow-run/{run}", f"--screenshot={IMAGES / 'flow-run.png'}")
        browse(f"{pages}/artifacts/artifact/{artifact(server)}", f"--screenshot={IMAGES / 'artifact.png'}")


if __name__ == "__main__":
    main()
