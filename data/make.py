"""Makes sample models: `python -m routetune.data.make squeezenet`.

Two of the models lie in the package. The others are too large for it and are made at first use, in the
package's own folder if that can be written to; else, or where ROUTETUNE_DATA says so, in a folder that then
holds the other samples as well, because a target file names its model and its inputs relative to itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from routetune.data import folder
from routetune.data.models.files import write

#: Model -> target.
SAMPLES = {"digits_cnn": "digits", "encoder": "encoder", "minilm": "minilm_qdq", "squeezenet": "squeezenet"}


def home() -> Path:
    """The folder where samples are made: ROUTETUNE_DATA, else the package's, else the user's cache."""
    chosen = os.environ.get("ROUTETUNE_DATA")
    if chosen:
        return Path(chosen).expanduser().resolve()
    if os.access(folder() / "models", os.W_OK):
        return folder()
    from importlib.metadata import version

    import platformdirs

    # One folder a version, since the samples of another version may differ.
    return platformdirs.user_cache_path("routetune", version=version("routetune")) / "data"


def ensure(name: str) -> Path:
    """Give the model file of the sample `name`, and make it first where it is missing.

    Raises:
        ValueError: there is no such sample.
        ModuleNotFoundError: making it needs a library that is not installed.
        OSError: its folder cannot be written to.
    """
    if name not in SAMPLES:
        raise ValueError(f"there is no sample model {name!r}, only {', '.join(SAMPLES)}")
    base = home()
    _lay_out(base)
    model = base / "models" / f"{name}.onnx"
    if not model.exists():
        importlib.import_module(f"routetune.data.models.{name}").make(base)
    return model


def target_file(name: str) -> Path:
    """Give the target file of the sample model `name`, and make the model as `ensure` does."""
    return ensure(name).parent.parent / "targets" / f"{SAMPLES[name]}.toml"


def _lay_out(base: Path) -> None:
    """Copy what the package holds and `base` lacks; what is there already may have been edited."""
    if base == folder():
        return
    for pattern in ("models/*.onnx", "inputs/*.npz", "targets/*.toml"):
        for source in folder().glob(pattern):
            copy = base / source.relative_to(folder())
            if not copy.exists():
                write(source.read_bytes(), copy)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the named samples and say which target file tunes each; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m routetune.data.make", description="Make sample models.")
    parser.add_argument("names", nargs="+", choices=list(SAMPLES), metavar="NAME", help=", ".join(SAMPLES))
    for name in parser.parse_args(arguments).names:
        try:
            path = target_file(name)
        except (OSError, ModuleNotFoundError) as error:
            print(f"the sample {name} cannot be made: {error}", file=sys.stderr)
            return 1
        print(f"{name}: tune it with `routetune tune {path}`")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
