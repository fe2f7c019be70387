"""The stages as plain functions, without Prefect: what is reused, what is not, and what is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.data import folder
from routetune.tasks import subject as subjects
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import _make, build_engines
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.rewrite import Source
from routetune.tasks.routes.route import Route
from routetune.tasks.select import select_winner
from routetune.tasks.status import freshness
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.manifests import Publication
from routetune.tasks.targets import model as models
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import loaded_first, time_engines
from routetune.tasks.trial import Trial

from tests.engines import faulty_models, small_models
from tests.quick import quick

PATTERN = "-graph_optimization_level=[all|disabled]"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def call(
        model: onnx.ModelProto | None = None,
        *,
        routes: str = PATTERN,
        tolerance: Any = 1e-3,
        metric: str = "lInf",
        trial_seconds: float = 30,
        name: str = "m.onnx",
        place: Path | None = None,
    ) -> Path:
        place = place or tmp_path
        place.mkdir(parents=True, exist_ok=True)
        if model is not None:
            onnx.save(model, place / name)
        path = place / "plain.toml"
        told = {
            "accuracy": {"metric": metric, "tolerance": tolerance},
            "budget": {"trial_seconds": trial_seconds},
        }
        path.write_text(quick("plain", name, routes, **told))
        return path

    return call


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def tune(path: Path, store: Store) -> tuple[Publication, dict[str, Trial]]:
    """The flow's body, stage by stage, without Prefect."""
    with open_bench(path, store) as bench:
        return tune_on(bench)


def tune_on(bench: Bench) -> tuple[Publication, dict[str, Trial]]:
    """As `tune`, on a bench that is open."""
    make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
    search = open_campaign(bench)
    while routes := search.ask():
        trials = build_engines.fn(bench, routes)  # type: ignore[attr-defined]
        trials = check_accuracy.fn(bench, trials)  # type: ignore[attr-defined]
        search.tell(time_engines.fn(bench, trials))  # type: ignore[attr-defined]
    selection = select_winner.fn(bench, list(bench.trials.values()))  # type: ignore[attr-defined]
    publication = publish_winner.fn(bench, selection)  # type: ignore[attr-defined]
    return publication, {str(trial.route): trial for trial in bench.trials.values()}


def built(trials: dict[str, Trial]) -> int:
    return sum(trial.built for trial in trials.values())


def test_routes_that_differ_only_at_load_share_a_build(write: Callable[..., Path], store: Store) -> None:
    """Eight routes and the default, of two graphs: a build for each graph, and figures for each route."""
    routes = (
        "-graph_optimization_level=[disabled|all] -enable_mem_pattern=[on|off] -intra_op_num_threads=[1|2]"
    )
    publication, trials = tune(write(small_models.cnn().model, routes=routes), store)
    engines = [trial.engine or {} for trial in trials.values()]
    assert built(trials) == len({engine["digest"] for engine in engines}) == 2
    assert len(trials) == len({engine["identity"] for engine in engines}) == 9
    assert all(trial.speed and not trial.alias_of for trial in trials.values())
    published = publication.manifest
    settings = {
        k: v for k, v in trials[published["route"]].route.settings if k != "-graph_optimization_level"
    }
    assert published["options"]["knobs"] == settings


def test_what_a_run_makes_is_shared_from_the_moment_it_is_kept(
    write: Callable[..., Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device may find an entry before the one that makes it has gone on."""
    put, met = store.entries.put, []

    def put_and_asked(key: Any, *given: Any, **told: Any) -> Any:
        kept = put(key, *given, **told)
        if key["stage"] == "build":
            met.append(bench.answer(key, lambda: pytest.fail("made twice")))
        return kept

    with open_bench(write(adding()), store) as bench:
        monkeypatch.setattr(store.entries, "put", put_and_asked)
        tune_on(bench)
    assert met and all(answer.shared and not answer.cached for answer in met)


def test_builds_of_one_shape_and_two_models_have_files_of_their_own(
    write: Callable[..., Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices may build routes of two placements at once, whose rests are alike."""
    outputs = []
    with open_bench(write(adding()), store) as bench:
        step = bench.step

        def noted(function: str, arguments: dict[str, Any], measuring: float = 0.0) -> Any:
            outputs.append(arguments.get("order", {}).get("output"))
            return step(function, arguments, measuring)

        monkeypatch.setattr(bench, "step", noted)
        for digest in ("a" * 64, "b" * 64):
            _make(bench, Source(digest, Route()))
    assert len(set(outputs)) == len(outputs) == 2


def adding(size: int = 4096, sidecar: str | None = None) -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(size, dtype=np.float32), "w")
    if sidecar is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=sidecar)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_changed_sidecar_bytes_are_another_model(write: Callable[..., Path], store: Store) -> None:
    """A1: the .onnx bytes stay the same, and nothing may be reused."""
    target = write(adding(sidecar="w.bin"))
    sidecar = target.parent / "w.bin"
    sidecar.write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    first, _ = tune(target, store)
    assert freshness(target, store).state == "fresh"
    content = bytearray(sidecar.read_bytes())
    content[20:24] = np.float32(77).tobytes()
    sidecar.write_bytes(content)
    state = freshness(target, store)
    assert state.state == "stale" and [change.field for change in state.changes] == ["target.model"]
    second, trials = tune(target, store)
    assert built(trials) == 2
    assert first.reference.engine != second.reference.engine


@pytest.mark.parametrize("name", ["here", "mod èle 士"])
def test_sidecars_and_links_work_from_any_directory(
    write: Callable[..., Path],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """A2, A3, A9: model and sidecar are links into blobs/, the folder has any name, and we are elsewhere."""
    place, blobs = tmp_path / name, tmp_path / name / "blobs"
    blobs.mkdir(parents=True)
    onnx.save(adding(sidecar="m.onnx_data"), blobs / "aa")
    (blobs / "bb").write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    (place / "m.onnx").symlink_to("blobs/aa")
    (place / "m.onnx_data").symlink_to("blobs/bb")
    target = write(place=place)
    monkeypatch.chdir("/")
    first, _ = tune(target, store)
    monkeypatch.chdir(place)
    assert freshness(Path("plain.toml"), store).state == "fresh"
    import onnxruntime

    session = onnxruntime.InferenceSession(first.engine, providers=["CPUExecutionProvider"])
    x = np.ones(4096, np.float32)
    assert np.array_equal(session.run(None, {"x": x})[0], x + np.arange(4096, dtype=np.float32))


def test_models_of_other_shapes_share_nothing(write: Callable[..., Path], store: Store) -> None:
    """G43: Add on 9 and Add on 16 elements, same names."""
    _, first = tune(write(adding(9)), store)
    _, second = tune(write(adding(16)), store)
    assert built(first) == built(second) == 2
    _, again = tune(write(adding(9)), store)
    assert built(again) == 0


def test_what_is_published_is_what_was_checked_and_timed(write: Callable[..., Path], store: Store) -> None:
    """E39: the bytes come from the trial, never from a second build."""
    publication, trials = tune(write(adding(), routes="-enable_mem_pattern=[on|off]"), store)
    winner = trials[publication.manifest["route"]]
    assert winner.engine is not None
    assert publication.reference.engine == winner.engine["digest"]
    checks = [e.key for e in store.entries if e.key["stage"] == "accuracy"]
    assert publication.reference.engine in {key["engine"] for key in checks}
    # And the order of loading is that of the route, in the key and in what was done.
    [timed] = [entry for entry in store.entries if entry.key["stage"] == "timing"]
    first = loaded_first(trials["-enable_mem_pattern=off"].route)
    assert (timed.key["first"], timed.value["rounds"]["loaded_first"]) == (first, first)


def test_a_default_route_that_hangs_leaves_the_first_eligible_one_as_control(
    write: Callable[..., Path], store: Store
) -> None:
    routes = f"-ConstantFolding=off {PATTERN}"
    target = write(faulty_models.hangs_when_folded(), routes=routes, trial_seconds=4)
    publication, trials = tune(target, store)
    assert trials[""].outcome == "timed out"
    manifest = publication.manifest
    assert manifest["control"] == "-ConstantFolding=off"
    assert manifest["route"].startswith("-ConstantFolding=off")
    assert manifest["decision"]["kind"] == "fastest eligible"


def test_a_default_route_that_is_not_accurate_cannot_win(write: Callable[..., Path], store: Store) -> None:
    """The default's blocked convolutions add up in another order than the model as written."""
    routes = "-graph_optimization_level=[disabled|all] -intra_op_num_threads=1"
    target = write(onnx.load(folder() / "models/digits_cnn.onnx"), routes=routes, tolerance=0)
    target.write_text(target.read_text() + '[shapes]\nx = "32x1x8x8"\n')
    publication, trials = tune(target, store)
    manifest = publication.manifest
    assert trials[""].accepted is False
    assert manifest["control"] == "" and manifest["decision"]["kind"] == "fastest eligible"
    assert "not eligible" in manifest["decision"]["reason"]
    assert manifest["route"] == "-graph_optimization_level=disabled -intra_op_num_threads=1"


def of(
    node: str,
    x: Any,
    y: Any,
    kind: int = TensorProto.FLOAT,
    domain: str = "",
    more: Any = (),
    outputs: int = 1,
    **constants: Any,
) -> onnx.ModelProto:
    """A model of one node, given as "Operator input ... -> y", from x and perhaps `more` to y."""
    words, result = node.split(" -> ")
    operator, *names = words.split()
    graph = helper.make_graph(
        [helper.make_node(operator, names, [result], domain=domain)],
        "g",
        [helper.make_tensor_value_info("x", kind, x), *more],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT if operator == "Gather" else kind, y)]
        * outputs,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


SECOND = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["m"])
TABLE = np.arange(4, dtype=np.float32).reshape(2, 2)
ONE = '[shapes]\nx = { min = "1", opt = "2", max = "4" }\n'
OWN = '[reference]\ninputs = "own.npz"\n'
#: id of the case: model, more of the target file, the user's own x, and what is told.
REFUSED: dict[str, tuple[onnx.ModelProto, str, Any, str]] = {
    "A4 truncated": (adding(sidecar="100.bin"), "", None, r"'w' expects 16384 bytes .*100\.bin, .* has 100"),
    "A4 deleted": (
        adding(sidecar="gone.bin"),
        "",
        None,
        r"'w' expects 16384 bytes .*gone\.bin, which is missing",
    ),
    "B11": (
        of("Reshape x s -> y", ["n", 3, "h"], [None, 16], s=[-1, 16]),
        "",
        None,
        r"input 'x', whose dimensions 0 \('n'\), 2 \('h'\) can vary",
    ),
    "B12": (
        of("Gather t x -> y", [3], [3, 2], TensorProto.INT64, t=TABLE),
        OWN,
        np.array([0, 5, 1]),
        r"invalid input for x: 5 is outside \[0, 2\) in .*own\.npz",
    ),
    "B14": (of("Relu x -> y", [2], [2], outputs=2), "", None, "several outputs of the name 'y'"),
    "B17": (of("Identity x -> y", [2], [2], TensorProto.STRING), "", None, "input 'x' is of type string"),
    "D29": (
        of("MyOp x -> y", [2], [2], domain="acme"),
        "",
        None,
        "operator 'MyOp' of domain 'acme' is unknown",
    ),
    "D30 no profile": (
        of("Add x z -> y", ["n"], [None], more=[SECOND]),
        ONE,
        None,
        r"input 'z', whose dimension 0 \('m'\) can vary",
    ),
    "D30 above max": (
        of("Relu x -> y", ["n"], ["n"]),
        ONE + OWN,
        np.ones(5, np.float32),
        r"'x': dimension 0 \('n'\) is 5, above the profile's max 4",
    ),
}
TWENTY = (
    f"{PATTERN} -enable_mem_reuse=[on|off] -graph_optimization_level=[disabled|basic|extended|layout|all]"
)


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_route_can_mend_is_one_error_before_any_build(
    write: Callable[..., Path], store: Store, case: str
) -> None:
    """Seen from the flow, with twenty routes: never "route failed" twenty times."""
    model, more, own, told = REFUSED[case]
    target = write(model, routes=TWENTY)
    target.write_text(target.read_text() + more)
    (target.parent / "100.bin").write_bytes(bytes(100))
    if own is not None:
        np.savez(target.parent / "own.npz", x=own)
    with pytest.raises(BadInput, match=told):
        tune(target, store)
    assert not list(store.entries) and store.records.read().num_rows == 0


def test_what_compares_nothing_is_refused_before_any_build(write: Callable[..., Path], store: Store) -> None:
    """No elements on any input set, and the cosine of one: every route would pass."""
    nothing = of("Compress x c -> y", [4], [None], c=np.zeros(4, bool))
    with pytest.raises(BadInput, match="output 'y' has no elements on any input set"):
        tune(write(nothing), store)
    one = of("ReduceSum x -> y", [4], [1])
    with pytest.raises(BadInput, match="'y' has one element, of which the cosine shows the sign alone"):
        tune(write(one, metric="cos"), store)
    assert store.records.read().num_rows == 0
    tune(write(one), store)


def test_an_output_without_elements_on_one_of_two_input_sets_is_warned_of(
    write: Callable[..., Path], store: Store
) -> None:
    target = write(of("NonZero x -> y", [4], [1, None], TensorProto.INT64))
    target.write_text(target.read_text() + '[reference]\ninputs = ["none.npz", "all.npz"]\n')
    for name, fill in (("none", 0), ("all", 1)):
        np.savez(target.parent / f"{name}.npz", x=np.full(4, fill))
    with pytest.warns(
        UserWarning, match="'y' has no elements on input set 'none': comparing it proves nothing"
    ):
        _, trials = tune(target, store)
    assert all(trial.accepted for trial in trials.values())


def test_saved_outputs_that_are_not_finite_are_not_put_down_to_the_model(
    write: Callable[..., Path], store: Store
) -> None:
    target = write(of("Relu x -> y", [4], [4]))
    target.write_text(target.read_text() + '[reference]\ninputs = "in.npz"\nsource = "out.npz"\n')
    np.savez(target.parent / "in.npz", x=np.ones(4, np.float32))
    np.savez(target.parent / "out.npz", y=np.array([1, np.nan, 1, 1], np.float32))
    with pytest.raises(BadInput, match=r"'y' is not finite .* in the files that reference\.source names"):
        tune(target, store)


def test_a_type_beyond_numpy_and_a_table_of_one_row_are_tuned(
    write: Callable[..., Path], store: Store
) -> None:
    """B18: bfloat16 from end to end; B12: drawn ids keep to the only row."""
    model = of("Identity x -> y", [2], [2], TensorProto.BFLOAT16, t=TABLE[:1])
    model.graph.node.append(helper.make_node("Gather", ["t", "i"], ["row"]))
    model.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, [3]))
    model.graph.output.append(helper.make_tensor_value_info("row", TensorProto.FLOAT, [3, 2]))
    _, trials = tune(write(model), store)
    assert [(trial.accepted, trial.loss) for trial in trials.values()] == [(True, 0.0)] * 2


def heavy() -> onnx.ModelProto:
    """Big enough a product that one thread or level more or less decides nothing, and slow tricks show."""
    weight = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    nodes = [helper.make_node("MatMul", [f"h{i}", "w"], [f"h{i + 1}"]) for i in range(4)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("h0", TensorProto.FLOAT, [64, 512])],
        [helper.make_tensor_value_info("h4", TensorProto.FLOAT, [64, 512])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_measurement_that_was_cut_short_is_made_again_when_its_reason_is_gone(
    write: Callable[..., Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abandoned beside a best route of that day; with another tolerance the bound falls, and it is timed."""
    from routetune.tasks import timing

    target = write(heavy(), routes="-session.disable_prepacking=[0|1]", tolerance=1e9)
    with monkeypatch.context() as strict:
        strict.setattr(timing, "HOPELESS", 1e-6)  # whatever is not a million times faster is hopeless
        _, trials = tune(target, store)
    assert trials["-session.disable_prepacking=1"].abandoned
    _, again = tune(target, store)
    assert not again["-session.disable_prepacking=1"].abandoned
    assert "timing" not in again["-session.disable_prepacking=1"].cached
    _, third = tune(target, store)
    assert "timing" in third["-session.disable_prepacking=1"].cached


def test_a_model_written_while_it_is_tuned_leaves_nothing_behind(
    write: Callable[..., Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the files are put back as they were: what was built in between is of another model."""
    target = write(adding())
    model = target.parent / "m.onnx"
    original, step = model.read_bytes(), Bench.step

    def swapped(self: Bench, function: str, arguments: dict[str, Any], *rest: Any) -> Any:
        if not function.endswith(":build"):
            return step(self, function, arguments, *rest)
        other = adding()
        other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(4096, np.float32), "w"))
        onnx.save(other, model)
        try:
            return step(self, function, arguments, *rest)
        finally:
            model.write_bytes(original)

    monkeypatch.setattr(Bench, "step", swapped)
    with pytest.raises(RoutetuneError, match="written while it was being tuned"):
        tune(target, store)
    assert not [entry for entry in store.entries if entry.key["stage"] == "build"]
    monkeypatch.undo()
    _, trials = tune(target, store)
    assert all(trial.loss == 0 for trial in trials.values())


def test_what_a_run_measures_again_is_recorded_again(write: Callable[..., Path], store: Store) -> None:
    """A run that was interrupted goes on with its records; with --refresh it takes nothing from the store."""
    target = write(small_models.cnn().model)

    def searched(bench: Bench) -> None:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        search = open_campaign(bench)
        while routes := search.ask():
            trials = check_accuracy.fn(bench, build_engines.fn(bench, routes))  # type: ignore[attr-defined]
            search.tell(time_engines.fn(bench, trials))  # type: ignore[attr-defined]

    with pytest.raises(KeyboardInterrupt), open_bench(target, store) as bench:
        searched(bench)
        raise KeyboardInterrupt
    with open_bench(target, store, refresh=True) as bench:
        searched(bench)
        measured = {str(trial.route): trial.speed for trial in bench.trials.values()}
        rows = store.records.read(bench.run.id, columns=("route", "speed")).to_pylist()
    assert len(store.runs.list()) == 1 and len(measured) == 2
    assert {row["route"]: row["speed"] for row in rows} == measured


def test_what_ran_before_there_was_a_control_is_timed_once_there_is_one(
    write: Callable[..., Path], store: Store
) -> None:
    """For the frontier: the default route is taken not to run, and the first that does to be inaccurate."""
    routes = "-graph_optimization_level=[all|disabled|basic]"
    with open_bench(write(small_models.cnn().model, routes=routes), store) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        search = open_campaign(bench)
        asked = [Route((("-graph_optimization_level", level),)) for level in ("disabled", "basic")]
        built = check_accuracy.fn(bench, build_engines.fn(bench, asked))  # type: ignore[attr-defined]
        over, eligible = replace(built[0], accepted=False), built[1]
        search.tell(time_engines.fn(bench, [over]))  # type: ignore[attr-defined]
        assert bench.trials[over.route.id].speed is None
        search.tell(time_engines.fn(bench, [eligible]))  # type: ignore[attr-defined]
        assert bench.control is not None and bench.control.route == eligible.route
        rows = store.records.read(bench.run.id, columns=("route", "speed")).to_pylist()
    assert len(rows) == 2 and all(row["speed"] for row in rows)


def test_no_key_holds_the_number_of_a_gpu(write: Callable[..., Path], store: Store) -> None:
    """Which of several it is says nothing of what is made there; unlike ones differ in the environment."""
    with open_bench(write(adding()), store) as bench:
        cpu = bench.key("build", "c" * 64)
        keys = []
        for device in ("cuda:0", "cuda:1"):
            bench.subject = replace(bench.subject, device=device)
            keys.append(bench.key("build", "c" * 64))
    assert keys[0] == keys[1] != cpu


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("at", ["the model is hashed", "all is hashed"])
@pytest.mark.parametrize("part", ["m.onnx", "w.bin", "x.npz", "saved.npz"])
def test_a_file_written_while_its_digest_is_taken_leaves_nothing_behind(
    write: Callable[..., Path], store: Store, monkeypatch: pytest.MonkeyPatch, part: str, at: str, back: bool
) -> None:
    """The digest is of what was read first, and all that follows would be of something else."""
    target = write(adding(sidecar="w.bin"))
    place = target.parent
    (place / "w.bin").write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    np.savez(place / "x.npz", x=np.ones(4096, np.float32))
    np.savez(place / "saved.npz", y=np.arange(4096, dtype=np.float32) + 1)
    target.write_text(target.read_text() + '[reference]\ninputs = "x.npz"\nsource = "saved.npz"\n')
    module, name = (models, "digest_of") if at == "the model is hashed" else (subjects, "bound_to")
    hashed = getattr(module, name)

    def written(*given: Any) -> Any:
        """Another writer's whole file takes the place of the one read, and perhaps the first one again."""
        found, kept = hashed(*given), (place / part).read_bytes()
        if part.endswith(".npz"):
            with np.load(place / part) as archive:
                np.savez(place / "new.npz", **{one: archive[one] * 2 for one in archive})
        else:
            (place / "new.npz").write_bytes(np.float32(2.5).tobytes() + kept[4:])
        (place / "new.npz").replace(place / part)
        if back:
            (place / part).write_bytes(kept)
        return found

    monkeypatch.setattr(module, name, written)
    with pytest.raises(RoutetuneError, match=f"{part} was written while it was being tuned"):
        tune(target, store)
    assert not list(store.entries) and not store.publications.environments("plain")
