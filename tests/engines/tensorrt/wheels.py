"""The vendor's wheels that the tests need, kept in a cache folder outside the repository.

`.ci/tensorrt` downloads them. A test that lacks one is skipped, and says how to get it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BINDINGS = ("11.1.0.106", "11.4.0.106")
RTX_BINDINGS = "1.7.1.116"
#: The execution provider's wheel that brings TensorRT-RTX 1.7.1's libraries.
RTX_PROVIDER = "0.5.0"

#: What TensorRT's bindings link against, and the functions that they take from there.
LIBRARIES = ("libnvinfer.so.11", "libnvinfer_plugin.so.11", "libnvonnxparser.so.11")
FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getInferLibVersion",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "routetune-tests"


def unpacked(distribution: str, version: str) -> Path:
    """The folder with a wheel's content; skips the test when the wheel is not there."""
    wheels = sorted((cache_folder() / "wheels").glob(f"{distribution}-{version}-*.whl"))
    found = [wheel for wheel in wheels if _fits(wheel.name)]
    if not found:
        pytest.skip(f"no wheel of {distribution} {version} in {cache_folder()}: run .ci/tensorrt to get it")
    folder = cache_folder() / "unpacked" / found[0].stem
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        with zipfile.ZipFile(found[0]) as archive:
            archive.extractall(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return folder


def stub_libraries(folder: Path) -> Path:
    """A folder with stand-ins for TensorRT's libraries, which let the bindings be imported, no more."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed; it makes the libraries that TensorRT's bindings link against")
    source = folder / "stub.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in FUNCTIONS))
    for library in LIBRARIES:
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", folder / library, source]
        subprocess.run(command, check=True)
    return folder


def rtx_modules(folder: Path) -> Path:
    """A folder for PYTHONPATH in which `import tensorrt_rtx` loads the vendor's libraries and bindings."""
    bindings = unpacked("tensorrt_rtx_cu13_bindings", RTX_BINDINGS)
    provider = unpacked("onnxruntime_ep_nv_tensorrt_rtx_cu13", RTX_PROVIDER)
    libraries = provider / "onnxruntime_ep_nv_tensorrt_rtx"
    # The package of the libraries themselves is on no public index; this is all that it does.
    (folder / "tensorrt_rtx.py").write_text(
        "import ctypes, sys\n"
        f"for name in ('libtensorrt_rtx.so.1.7.1', 'libtensorrt_onnxparser_rtx.so.1.7.1'):\n"
        f"    ctypes.CDLL({str(libraries)!r} + '/' + name, ctypes.RTLD_GLOBAL)\n"
        f"sys.path.append({str(bindings)!r})\n"
        "import tensorrt_rtx_bindings\n"
        "sys.modules['tensorrt_rtx'] = tensorrt_rtx_bindings\n"
    )
    return folder


def _fits(wheel: str) -> bool:
    tag = wheel.split("-")[-3]
    return tag in (f"cp{sys.version_info.major}{sys.version_info.minor}", "py3")
