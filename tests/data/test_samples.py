"""The sample data: what lies in the package is what its scripts make, and it is worth tuning."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from routetune.data import folder, make
from routetune.data.models import digits_cnn, encoder, minilm, squeezenet
from routetune.tasks.engines.onnxruntime.knobs import knob_database
from routetune.tasks.routes.expression import parse, parse_partial
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.search import open_search
from routetune.tasks.subject import target_knobs
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.schema import Target, load_target
from routetune.tasks.verdicts.losses import losses

DATA = folder()
# The file that squeezenet.py makes is not in the package; its bytes were the same with onnx 1.18 and 1.23.
SQUEEZENET = "e8d4fa2eb80fc6d9021f35f931c5c94cbdc5bf87896e4a119b420e64c20670d9"
MINILM = "0d317d364a93ab5c66b44539efa8f2176cceb1f67ee9568a3eb782ebe7e5a49e"
LIMIT = 2_000_000  # bytes a file of the package may have

Arrays = dict[str, np.ndarray[Any, Any]]


def session(model: Path, level: str = "ORT_ENABLE_ALL", optimised: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 3
    if optimised:
        options.optimized_model_filepath = str(optimised)
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def run(model: Path, arrays: Arrays) -> Arrays:
    opened = session(model)
    feeds = {name: arrays[name] for name in (value.name for value in opened.get_inputs())}
    return dict(zip((value.name for value in opened.get_outputs()), opened.run(None, feeds), strict=True))


def optimised_operators(model: Path, folder: Path) -> Counter[str]:
    session(model, "ORT_ENABLE_EXTENDED", folder / "optimised.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node)


def arrays(name: str) -> Arrays:
    with np.load(DATA / "inputs" / name, allow_pickle=False) as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTETUNE_DATA", str(tmp_path_factory.mktemp("zoo")))
        return make.ensure("squeezenet")


def test_no_file_of_the_package_is_large() -> None:
    sizes = {path.name: path.stat().st_size for path in DATA.glob("*/*") if path.is_file()}
    assert {"digits_cnn.onnx", "encoder.onnx", "digits.npz", "encoder.npz"} <= set(sizes)
    for made in ("squeezenet.onnx", "minilm.onnx"):  # made at first use, no files of the package
        sizes.pop(made, None)
    assert max(sizes.values()) < LIMIT


def test_digits_network_reads_digits_it_never_saw() -> None:
    trained, _, images, labels = digits_cnn.split()
    assert not {image.tobytes() for image in trained} & {image.tobytes() for image in images}
    right = int((run(DATA / "models" / "digits_cnn.onnx", {"x": images})["logits"].argmax(1) == labels).sum())
    assert right / len(labels) > 0.97
    assert f"{right} of {len(labels)}" in (DATA / "README.md").read_text()


def test_digits_network_has_four_quantisable_layers_and_something_to_fuse(tmp_path: Path) -> None:
    path = DATA / "models" / "digits_cnn.onnx"
    operators = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert (operators["Conv"], operators["MatMul"], operators["Gemm"]) == (3, 1, 0)
    assert operators["BatchNormalization"] == 3
    fused = optimised_operators(path, tmp_path)
    assert (fused["BatchNormalization"], fused["MatMul"], fused["Gemm"], fused["FusedConv"]) == (0, 0, 1, 2)
    opened = session(path)
    assert [(value.name, value.type, value.shape) for value in opened.get_inputs()] == [
        ("x", "tensor(float)", ["batch", 1, 8, 8])
    ]
    assert [(value.name, value.shape) for value in opened.get_outputs()] == [("logits", ["batch", 10])]


def test_digits_inputs_are_the_scripts(tmp_path: Path) -> None:
    made = digits_cnn.make_inputs(tmp_path / "digits.npz")
    assert made.read_bytes() == (DATA / "inputs" / "digits.npz").read_bytes()
    images = arrays("digits.npz")
    assert images["x"].shape == (32, 1, 8, 8) and images["x"].dtype == np.float32
    assert images["x"].min() == 0.0 and images["x"].max() == 1.0
    assert images["y"].dtype == np.int64 and len(set(images["y"].tolist())) >= 9


def test_the_other_held_out_images_are_the_scripts(tmp_path: Path) -> None:
    made = digits_cnn.make_held_out(tmp_path / "digits_held_out.npz")
    assert made.read_bytes() == (DATA / "inputs" / "digits_held_out.npz").read_bytes()
    assert arrays("digits_held_out.npz")["x"].shape == (597 - 32, 1, 8, 8)


def test_encoder_is_its_scripts(tmp_path: Path) -> None:
    for made in encoder.make(tmp_path):
        assert made.read_bytes() == (DATA / made.relative_to(tmp_path)).read_bytes()


def test_encoder_fuses(tmp_path: Path) -> None:
    fused = optimised_operators(DATA / "models" / "encoder.onnx", tmp_path)
    wanted = {"Attention": 2, "BiasGelu": 2, "EmbedLayerNormalization": 1, "SkipLayerNormalization": 4}
    assert {name: fused[name] for name in wanted} == wanted


def test_encoder_outputs_tell_inputs_apart() -> None:
    model, sentences = DATA / "models" / "encoder.onnx", arrays("encoder.npz")
    outputs = run(model, sentences)
    assert outputs["last_hidden_state"].std(axis=(0, 1)).min() > 0.1  # no unit is constant
    assert outputs["logits"].std(axis=0).min() > 0.1
    changed = {name: array.copy() for name, array in sentences.items()}
    changed["input_ids"][:, 2] = 5  # one token of each sentence
    assert np.abs(run(model, changed)["logits"] - outputs["logits"]).max(axis=1).min() > 1e-2
    unmasked = {**sentences, "attention_mask": np.ones_like(sentences["attention_mask"])}
    assert np.abs(run(model, unmasked)["logits"] - outputs["logits"]).max(axis=1).min() > 1e-2
    lengths = sentences["attention_mask"].sum(axis=1)
    assert len(set(lengths.tolist())) > 5
    shorter = {name: array[:3, : lengths[:3].max()] for name, array in sentences.items()}
    # Padding is inert.
    np.testing.assert_allclose(run(model, shorter)["logits"], outputs["logits"][:3], atol=1e-5)


def test_squeezenet_is_reproducible_and_discriminates(tmp_path: Path) -> None:
    (zoo,) = squeezenet.make(tmp_path)  # afresh, and not what an earlier use has left in the package
    assert hashlib.sha256(zoo.read_bytes()).hexdigest() == SQUEEZENET
    operators = Counter(node.op_type for node in onnx.load(zoo).graph.node)
    assert operators["Conv"] == 26 and not operators["Softmax"] and not operators["ConstantOfShape"]
    images = np.random.RandomState(1).uniform(-2.2, 2.7, (2, 3, 224, 224)).astype(np.float32)
    logits = run(zoo, {"data_0": images})["logits"]
    assert logits.shape == (2, 1000, 1, 1)
    assert logits.std(axis=1).min() > 0.1
    assert np.abs(logits[0] - logits[1]).max() > 0.1


def test_minilm_is_the_encoder_at_another_size(tmp_path: Path) -> None:
    (path,) = minilm.make(tmp_path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == MINILM
    with np.load(DATA / "inputs" / "encoder.npz") as sentences:
        outputs = run(path, dict(sentences))
    assert outputs["last_hidden_state"].shape == (8, 64, 384)
    assert np.abs(np.diff(outputs["logits"], axis=0)).max(axis=1).min() > 0.1


def test_ensure_makes_a_model_once_and_lays_the_others_out(
    zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = zoo.parent.parent
    monkeypatch.setenv("ROUTETUNE_DATA", str(home))
    edited = home / "targets" / "digits.toml"
    edited.write_text("# edited by its owner\n")
    before = zoo.stat()
    assert make.ensure("squeezenet") == zoo
    assert (zoo.stat().st_mtime_ns, zoo.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert edited.read_text() == "# edited by its owner\n"
    assert make.target_file("encoder") == home / "targets" / "encoder.toml"
    assert (home / "inputs" / "encoder.npz").read_bytes() == (DATA / "inputs" / "encoder.npz").read_bytes()
    assert not list(home.rglob(".*")), "a temporary file was left"


def test_a_package_that_cannot_be_written_to_leaves_samples_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUTETUNE_DATA", raising=False)
    assert make.home() == DATA
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere, so no mode bits would do
    made = make.target_file("encoder")
    assert made.is_relative_to(tmp_path)
    assert made.read_bytes() == (DATA / "targets" / "encoder.toml").read_bytes()


def test_command_names_the_target_and_refuses_what_it_cannot_make(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUTETUNE_DATA", str(zoo.parent.parent))
    assert make.main(["squeezenet"]) == 0
    assert str(zoo.parent.parent / "targets" / "squeezenet.toml") in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        make.main(["resnet"])
    assert stopped.value.code == 2 and "squeezenet" in capsys.readouterr().err
    with pytest.raises(ValueError, match="squeezenet"):
        make.ensure("resnet")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ROUTETUNE_DATA", str(tmp_path / "file"))
    assert make.main(["squeezenet"]) == 1
    assert "squeezenet cannot be made" in capsys.readouterr().err


def sample_target(name: str, zoo: Path) -> Target:
    home = zoo.parent.parent if name == "squeezenet" else DATA
    return load_target(home / "targets" / f"{name}.toml")


@pytest.mark.parametrize("name", ["digits", "encoder", "squeezenet"])
def test_target_searches_knobs_that_exist_within_its_budget(name: str, zoo: Path) -> None:
    target = sample_target(name, zoo)
    assert target.name == name
    knobs = knob_database()
    rules = [parse_partial(rule, knobs) for rule in target.search.exclude]
    space = RouteSpace(parse(target.search.routes, knobs), knobs, rules)
    assert len(rules) == len(target.search.exclude)
    assert 10 <= len(open_search("fast", space).ask(1000)) <= target.budget.trials < space.size


@pytest.mark.parametrize(
    ("name", "size"), [("digits", 16), ("encoder", 32), ("minilm", 8), ("squeezenet", 16)]
)
def test_targets_with_places_are_searched_whole_within_their_budget(
    name: str, size: int, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTETUNE_DATA", str(zoo.parent.parent))
    home = make.ensure(name).parent.parent if name in ("minilm", "squeezenet") else DATA
    target = load_target(home / "targets" / f"{name}_qdq.toml")
    knobs = target_knobs(target, inspect_model(target), "onnxruntime", "cpu")
    space = RouteSpace(parse(target.search.routes, knobs), knobs, [])
    assert target.name == f"{name}-qdq" and target.search.algorithm == "full"
    assert space.size == size == target.budget.trials
    input_sets(target, inspect_model(target))


@pytest.mark.parametrize("name", ["digits", "encoder", "squeezenet"])
def test_the_default_route_is_within_the_targets_tolerance(name: str, zoo: Path) -> None:
    target = sample_target(name, zoo)
    sets = input_sets(target, inspect_model(target))
    assert ("user" in {chosen.role for chosen in sets}) == (target.reference.inputs is not None)
    references, default = session(target.model, "ORT_DISABLE_ALL"), session(target.model)
    for chosen in sets:
        feeds = {value.name: chosen.arrays[value.name] for value in default.get_inputs()}
        for reference, candidate in zip(references.run(None, feeds), default.run(None, feeds), strict=True):
            values = losses(reference, candidate, target.accuracy.atol, target.accuracy.rtol).values
            assert values[target.accuracy.metric] <= target.accuracy.tolerance, chosen.name
