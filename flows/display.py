"""What a person sees of a run in Prefect: its name, its tags, and the engine as an asset."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from prefect import runtime
from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from routetune.tasks import canonical
from routetune.tasks.bench import Bench
from routetune.tasks.errors import BadInput
from routetune.tasks.store.manifests import Publication
from routetune.tasks.subject import resolve, today
from routetune.tasks.targets.environment import Environment
from routetune.tasks.targets.schema import load_target


def run_name() -> str:
    """ "tune digits on NVIDIA L4, driver 535.171.04, onnxruntime 1.32.0", if the target can be read."""
    path = Path(runtime.flow_run.parameters["target"])
    try:
        target = load_target(path)
        return f"tune {target.name} on {today(*resolve(target)).label}"
    except BadInput:
        return f"tune {path.stem}"


def tag_run(flow: Any, flow_run: Any, state: Any) -> None:
    """Tag a run with its target, device, driver and backend, to be filtered by. A hook for `on_running`."""
    try:
        target = load_target(Path(flow_run.parameters["target"]))
        tags = [f"target:{target.name}", *tags_of(today(*resolve(target)))]
    except BadInput:
        return  # the flow says what is wrong
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=sorted({*flow_run.tags, *tags}))


def tags_of(environment: Environment) -> list[str]:
    """Device, driver and backend, as tags."""
    fields = environment.fields
    backend = str(fields["backend"])
    version = str(fields.get(f"version.{backend}", "")).split(" ")[0]
    if environment.is_gpu:
        device = [f"gpu:{fields['gpu.name']}", f"driver:{fields['driver']}"]
    else:
        device = [f"cpu:{fields['cpu.model']}"]
    return [*device, f"{backend}:{version}" if version else backend]


def leave_asset(bench: Bench, publication: Publication) -> None:
    """Tell Prefect of the published engine as an asset, made from the model and the references.

    Prefect's own server keeps assets as events only: a signal and a lineage to look at. What is published,
    and whether it is whole, only the store can tell.
    """
    try:
        _show(bench, publication)
    except Exception as error:  # what is published stays so, whatever Prefect makes of it
        warnings.warn(f"the engine could not be shown to Prefect as an asset: {error}", stacklevel=2)


def _show(bench: Bench, publication: Publication) -> None:
    subject, manifest = bench.subject, publication.manifest
    engine = Asset(
        key=f"routetune://{subject.target.name}/{subject.key}",
        properties=AssetProperties(
            name=f"engine of {subject.target.name}",
            url=publication.engine.as_uri(),
            description=f"{manifest['route'] or 'default route'} on {subject.environment.label}",
        ),
    )
    told = {
        "generation": publication.reference.generation,
        "engine": publication.reference.engine,
        "route": manifest["route"],
        "speed": manifest["speed"],
        "run": manifest["run"],
    }

    @materialize(
        engine,
        by="routetune",
        name="show the engine as an asset",
        task_run_name=f"engine of {subject.target.name} as an asset",
        asset_deps=_made_from(bench),
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    def show() -> None:
        engine.add_metadata(told)

    show()


def _made_from(bench: Bench) -> list[str | Asset]:
    """The model and the references, by what they hold: two targets of one model meet in its asset."""
    subject = bench.subject
    model, reference = subject.model, subject.bound_to["target"]["reference"]
    outputs = canonical.digest({"model": model.digest, "reference": reference})
    properties = AssetProperties(name=model.path.name, url=model.path.absolute().as_uri())
    source = reference["source"] if isinstance(reference["source"], str) else "saved outputs"
    about = AssetProperties(name=f"references of {subject.target.name}", description=source)
    return [
        Asset(key=f"routetune://models/{model.digest[:16]}", properties=properties),
        Asset(key=f"routetune://references/{outputs[:16]}", properties=about),
    ]
