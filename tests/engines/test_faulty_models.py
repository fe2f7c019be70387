"""The faulty models have the faults that they are said to have, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.engines import faulty_models as models

#: A step that takes this long where a hang is expected is hanging: the healthy ones take a hundredth of it.
SECONDS = 4.0

# argv: model, engine, value of the inputs; then knobs, or an entry=value to be handed to the library itself.
SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    import numpy as np
    import onnxruntime
    from routetune.tasks.engines.onnxruntime import session
    from routetune.tasks.engines.base import BuildOrder
    from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime

    onnxruntime.set_default_logger_severity(4)
    model, engine, value, *route = sys.argv[1:]
    if route and not route[0].startswith("-"):
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(*route[0].split("="))
        session.open_session(Path(model), options, "CPUExecutionProvider")
        sys.exit()
    backend = OnnxRuntime()
    order = BuildOrder(Path(model), dict(knob.split("=") for knob in route), Path(engine))
    built = backend.build(order)
    print("built", flush=True)
    runner = backend.load(built, "cpu", {})
    kind = runner._inputs["x"].dtype
    shape = runner._session.get_inputs()[0].shape
    print(runner.infer({"x": np.full(shape, int(value), kind)})["y"].ravel().tolist())
""")


def run(
    model: onnx.ModelProto, folder: Path, *route: str, value: int = 1, seconds: float = 60.0
) -> tuple[int | str, str]:
    """How the process ends ("hang", or its exit code, negative for a signal), and what it printed."""
    onnx.save(model, folder / "m.onnx")
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        str(folder / "m.onnx"),
        str(folder / "engine"),
        str(value),
        *route,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        return "hang", (late.stdout or b"").decode()
    return done.returncode, done.stdout


@pytest.mark.parametrize("make", [models.crashes_when_folded, models.hangs_when_folded, models.three_faults])
def test_the_models_are_valid(make: models.Make) -> None:
    onnx.checker.check_model(make(), full_check=True)


def test_the_three_faults_are_away_by_default_and_by_harmless_routes(tmp_path: Path) -> None:
    routes = [(), *((route,) for route in models.HARMLESS)]
    healthy = {run(models.three_faults(), tmp_path, *route) for route in routes}
    assert len(healthy) == 1, "one answer whatever the route"
    code, printed = healthy.pop()
    assert code == 0
    assert np.isfinite(json.loads(printed.splitlines()[1])).all()


@pytest.mark.parametrize("route", models.FAULTS)
def test_each_knob_brings_out_its_fault(route: str, tmp_path: Path) -> None:
    fault, step = models.FAULTS[route]
    limit = {"seconds": SECONDS} if fault == "hang" else {}
    end, printed = run(models.three_faults(), tmp_path, route, **limit)
    assert ("built" in printed) is (step == "run")
    if fault == "NaN":
        assert end == 0 and "nan" in printed
    else:
        assert end == {"SIGFPE": -signal.SIGFPE, "hang": "hang"}[fault]


@pytest.mark.slow
def test_the_other_faults(tmp_path: Path) -> None:
    off = "-ConstantFolding=off"
    entry = "mlas.nchwc_pointwise_conv_max_input_channel_batch=x"
    lowest = int(models.LOWEST)
    trap = -signal.SIGFPE
    assert run(models.crashes_when_folded(), tmp_path) == (trap, "")
    assert run(models.crashes_when_folded(), tmp_path, off) == (trap, "built\n")
    assert run(models.crashes_at_run(), tmp_path, value=lowest) == (trap, "built\n")
    assert run(models.crashes_at_run(), tmp_path, value=7) == (0, "built\n[-7]\n")
    assert run(models.aborts_on_bad_entry(), tmp_path, entry) == (-signal.SIGABRT, "")
    assert run(models.never_ends(), tmp_path, seconds=SECONDS) == ("hang", "built\n")
    assert run(models.hangs_when_folded(), tmp_path, seconds=SECONDS) == ("hang", "")
    assert run(models.hangs_when_folded(), tmp_path, off) == (0, "built\n[1.0, 1.0, 1.0, 1.0]\n")
