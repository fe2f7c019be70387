"""minilm: the encoder at the size of MiniLM-L6, with seeded random weights; 43 MB, so made at first use.

    python -m routetune.data.make minilm

Inputs and outputs are those of `encoder`, whose sentences it shares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from routetune.data.models.encoder import Size, build
from routetune.data.models.files import write_model

#: Layers and widths of MiniLM-L6-H384 (Wang et al. 2020, arXiv:2002.10957).
SIZE = Size(layers=6, hidden=384, heads=12, inner=1536)


def make(home: Path) -> list[Path]:
    """Write `models/minilm.onnx` under `home`."""
    return [write_model(build(SIZE), home / "models" / "minilm.onnx")]


if __name__ == "__main__":
    for written in make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]):
        print(written)
