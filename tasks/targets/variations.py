"""Input sets made out of others: the same shapes and kinds of values, but not the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from routetune.tasks import canonical
from routetune.tasks.targets.inputs import Array, InputSet, Role, seeded_arrays

if TYPE_CHECKING:
    from routetune.tasks.targets.model import ModelInfo
    from routetune.tasks.targets.schema import Target

#: Probes beside the first input set: a coincidence of outputs on three sets is none.
PROBES = 2


def probes(target: Target, model: ModelInfo, sets: list[InputSet]) -> list[InputSet]:
    """Variations of the first set, to see whether outputs move with the inputs; they are not judged."""
    return varied(target, model, sets[0], "probe", PROBES)


def fresh(target: Target, model: ModelInfo, sets: list[InputSet], salt: str) -> list[InputSet]:
    """Variations of each set that no engine has seen: another `salt` gives other values."""
    return [
        made
        for one in sets
        for made in varied(target, model, one, "seeded", 1, f"fresh-{salt[:12]}-{one.name}")
    ]


def varied(
    target: Target, model: ModelInfo, base: InputSet, role: Role, count: int, name: str = "probe"
) -> list[InputSet]:
    """Sets of the same shapes as `base`.

    A user's values are shuffled within each input, so that they stay as the model expects them: in range,
    whole, an index that exists. Where that changes nothing, and for seeded sets, they are drawn anew.
    """
    found = []
    for number in range(count):
        own = f"{name}-{number}"
        arrays = base.arrays
        if base.role == "user":
            arrays = {key: _shuffled(array, own, key) for key, array in arrays.items()}
        if all(np.array_equal(arrays[key], array) for key, array in base.arrays.items()):
            arrays = seeded_arrays(own, base.shapes, target, model)
        found.append(InputSet(own, arrays, role))
    return found


def _shuffled(array: Array, set_name: str, input_name: str) -> Array:
    generator = np.random.default_rng(int(canonical.digest([set_name, input_name]), 16))
    return generator.permutation(array.reshape(-1)).reshape(array.shape)
