"""Exports into a Triton model repository: the configuration is read back by protobuf's own parser.

The message types below have the field numbers of Triton's ModelConfig, as far as an export uses it; what they
do not know, the parser refuses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # type: ignore
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.service import current_engine
from routetune.tasks.store import Store, open_store
from routetune.tasks.targets.model import TensorInfo
from routetune.tasks.triton import configuration, export

from tests.published import publish
from tests.store.conftest import Crash, killed_at_every_step  # noqa: F401

TEXT, INT32, INT64 = 9, 5, 3
DATA_TYPES = (
    *("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)
TYPES = DATA_TYPES, ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
#: Message -> field -> (number, kind, repeated); a kind is the number of a scalar, or a message or enum.
FIELDS: dict[str, dict[str, tuple[int, Any, bool]]] = {
    "Reshape": {"shape": (1, INT64, True)},
    "Input": {
        "name": (1, TEXT, False),
        "data_type": (2, "DataType", False),
        "dims": (4, INT64, True),
        "reshape": (5, "Reshape", False),
    },
    "Output": {
        "name": (1, TEXT, False),
        "data_type": (2, "DataType", False),
        "dims": (3, INT64, True),
        "reshape": (5, "Reshape", False),
    },
    "Specific": {"versions": (1, INT64, True)},
    "Policy": {"specific": (3, "Specific", False)},
    "Group": {
        "count": (2, INT32, False),
        "gpus": (3, INT32, True),
        "kind": (4, "Kind", False),
        "profile": (5, TEXT, True),
    },
    "Graph": {"level": (1, INT32, False)},
    "Pair": {"key": (1, TEXT, False), "value": (2, TEXT, False)},
    "Accelerator": {"name": (1, TEXT, False), "parameters": (2, "Pair", True)},
    "Accelerators": {"gpu_execution_accelerator": (1, "Accelerator", True)},
    "Optimization": {"graph": (1, "Graph", False), "execution_accelerators": (4, "Accelerators", False)},
    "Parameter": {"string_value": (1, TEXT, False)},
    "Entry": {"key": (1, TEXT, False), "value": (2, "Parameter", False)},
    "Config": {
        "name": (1, TEXT, False),
        "platform": (2, TEXT, False),
        "version_policy": (3, "Policy", False),
        "max_batch_size": (4, INT32, False),
        "input": (5, "Input", True),
        "output": (6, "Output", True),
        "instance_group": (7, "Group", True),
        "default_model_filename": (8, TEXT, False),
        "optimization": (12, "Optimization", False),
        "parameters": (14, "Entry", True),
        "backend": (17, TEXT, False),
    },
}


def message_type() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="config.proto", package="t", syntax="proto3")
    for name, values in zip(("DataType", "Kind"), TYPES, strict=True):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value if name == "Kind" else f"TYPE_{value}", number=number)
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = 3 if repeated else 1
            if isinstance(kind, int):
                message.field.add(name=field, number=number, type=kind, label=label)
            else:
                of = 14 if kind in ("DataType", "Kind") else 11
                message.field.add(name=field, number=number, type=of, label=label, type_name=f".t.{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Config"))


CONFIG = message_type()


def parsed(text: str) -> Any:
    config = text_format.Parse(text, CONFIG())
    assert text_format.Parse(text_format.MessageToString(config), CONFIG()) == config
    return config


def parameters(config: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in config.parameters}


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def test_an_engine_in_a_model_repository(store: Store, tmp_path: Path, routetune: Any) -> None:
    route = {"-intra_op_num_threads": "1", "-enable_mem_pattern": "off", "-session.disable_prepacking": "1"}
    published = publish(store, tmp_path, 1.0, route)
    process = routetune("export", tmp_path / "plus.toml", "--triton", tmp_path / "repo", "--json")
    answer = json.loads(process.stdout)
    assert Path(answer["engine"]) == tmp_path / "repo/plus/1/model.onnx"
    assert Path(answer["engine"]).read_bytes() == published.engine.read_bytes()
    text = (tmp_path / "repo/plus/config.pbtxt").read_text()
    config = parsed(text)
    assert (config.name, config.backend, config.platform) == ("plus", "onnxruntime", "onnxruntime_onnx")
    assert config.max_batch_size == 0 and config.default_model_filename == "model.onnx"
    # What Triton will feed and expect is what the file takes and gives.
    session = onnxruntime.InferenceSession(answer["engine"], providers=["CPUExecutionProvider"])
    for told, real in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [one.name for one in told] == [one.name for one in real]
        assert [list(one.dims) for one in told] == [[-1]]
        assert told[0].data_type == TYPES[0].index("FP32")
    assert config.optimization.graph.level == 2, "Triton's number for no optimisation at all"
    assert config.instance_group[0].kind == TYPES[1].index("KIND_CPU")
    found = parameters(config)
    assert found["intra_op_thread_count"] == "1" and found["enable_mem_pattern"] == "0"
    assert found["routetune.engine_sha256"] == published.reference.engine
    assert any("-session.disable_prepacking=1" in sentence for sentence in answer["unsaid"])
    assert "# not said here: -session.disable_prepacking=1" in text


def test_versions_are_generations_and_only_the_current_one_is_served(store: Store, tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    for number in (1.0, 2.0):
        publish(store, tmp_path, number)
        served = current_engine("plus", store.root)
        infos = [TensorInfo("x", "float32", (None,))], [TensorInfo("y", "float32", (None,))]
        first = export(served, *infos, repository)
        assert export(served, *infos, repository) == first, "again is the same"
    home = repository / "plus"
    assert sorted(path.name for path in home.iterdir()) == ["1", "2", "config.pbtxt"]
    assert list(parsed((home / "config.pbtxt").read_text()).version_policy.specific.versions) == [2]
    for version, number in (("1", 1.0), ("2", 2.0)):
        session = onnxruntime.InferenceSession(home / version / "model.onnx")
        assert session.run(None, {"x": np.zeros(1, np.float32)})[0] == [number]
    (home / "2/model.onnx").write_bytes(b"mine")
    with pytest.raises(RoutetuneError, match="another engine than generation 2"):
        export(served, *infos, repository)


EXPORTER = """
from pathlib import Path
from routetune.tasks.service import current_engine
from routetune.tasks.targets.model import TensorInfo
from routetune.tasks.triton import export
published = current_engine("plus", Path(sys.argv[1]).parent / "store")
x, y = (TensorInfo(name, "float32", (None,)) for name in "xy")
def act(root):
    export(published, [x], [y], root / "repo")
"""


def test_a_kill_at_any_file_operation_leaves_what_the_configuration_names(
    store: Store,
    tmp_path: Path,
    killed_at_every_step: Crash,  # noqa: F811
) -> None:
    home, root = tmp_path / "triton" / "repo" / "plus", tmp_path / "triton"
    root.mkdir()
    bytes_of = {}
    for number in (1, 2):
        bytes_of[number] = publish(store, tmp_path, float(number)).engine.read_bytes()
        for stop in killed_at_every_step(EXPORTER, root):
            if home.exists():
                [version] = parsed((home / "config.pbtxt").read_text()).version_policy.specific.versions
                assert (home / str(version) / "model.onnx").read_bytes() == bytes_of[version]
            assert stop.killed or version == number
        assert stop.step > 5
        assert list(home.parent.iterdir()) == [home], "what the killed ones left is cleared"
    assert sorted(path.name for path in home.iterdir()) == ["1", "2", "config.pbtxt"]


@pytest.mark.parametrize("there", ["folder", "other target", "link", "file"])
def test_what_is_not_ours_is_left_alone(store: Store, tmp_path: Path, there: str) -> None:
    publish(store, tmp_path, 1.0)
    home = tmp_path / "repo" / "plus"
    home.parent.mkdir()
    if there == "link":
        (tmp_path / "elsewhere").mkdir()
        home.symlink_to(tmp_path / "elsewhere")
    elif there == "file":
        home.write_text("mine")
    else:
        home.mkdir()
        first = "# Written by routetune for target other" if there == "other target" else "# mine"
        (home / "config.pbtxt").write_text(first)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="left alone: choose another name with --model-name"):
        export(current_engine("plus", store.root), [], [], home.parent)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(BadInput, match="cannot name anything"):
        export(current_engine("plus", store.root), [], [], home.parent, "../plus")
    assert export(current_engine("plus", store.root), [], [], home.parent, "plus-2")["model"] == "plus-2"


KEPT = {
    "target": "t",
    "generation": 7,
    "route": "-a=b",
    "engine": {"digest": "0" * 64},
    "bound_to": {"target": {"profiles": {"0": {}, "1": {}}}, "environment": {"version.tensorrt": "11.1"}},
}


def test_configurations_of_gpu_engines() -> None:
    names = [TensorInfo('a "b"\\ é\n', "bool", (2, "n", None)), TensorInfo("s", "bfloat16", ())]
    plan = KEPT | {"backend": "tensorrt", "device": "cuda:1", "options": {}}
    config = parsed(configuration(plan, "m", names, [TensorInfo("y", "uint8", (3,))])[0])
    assert (config.platform, config.default_model_filename) == ("tensorrt_plan", "model.plan")
    assert config.input[0].name == names[0].name and list(config.input[0].dims) == [2, -1, -1]
    assert list(config.input[1].dims) == [1] and config.input[1].HasField("reshape")
    assert [one.data_type for one in (*config.input, *config.output)] == [1, 14, 2]
    group = config.instance_group[0]
    assert group.kind == 1 and list(group.gpus) == [1] and list(group.profile) == ["0", "1"]
    assert not config.HasField("optimization")

    knobs = {"-use_tf32": "0", "-execution_mode": "parallel", "-session.x": "1"}
    cuda = KEPT | {"backend": "onnxruntime", "device": "cuda:0", "options": {"knobs": knobs}}
    text, unsaid = configuration(cuda, "m", [], [])
    config = parsed(text)
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator[0]
    assert accelerator.name == "cuda"
    assert [(one.key, one.value) for one in accelerator.parameters] == [("use_tf32", "0")]
    assert parameters(config)["execution_mode"] == "1"
    assert unsaid[0].startswith("-session.x=1: ")


@pytest.mark.parametrize(
    ("tensor", "backend", "words"),
    [
        (TensorInfo("x", "int4", (1,)), "onnxruntime", "'x' is of type int4"),
        (TensorInfo("x", "float32", None), "onnxruntime", "'x' is of no known rank"),
        (TensorInfo("x", "float32", (1,)), "my.module:Backend", "is none of Triton's"),
    ],
)
def test_what_triton_cannot_serve_is_refused(tensor: TensorInfo, backend: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        configuration(KEPT | {"backend": backend, "device": "cpu", "options": {}}, "m", [tensor], [])
