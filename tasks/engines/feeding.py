"""What every runner checks of the inputs that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from routetune.tasks.errors import BadInput

Array = np.ndarray[Any, Any]


def checked_inputs(inputs: Mapping[str, Array], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """The inputs in the model's order, contiguous.

    Args:
        dtypes: the model's inputs by name, in its order.

    Raises:
        BadInput: an input is missing, unknown, or of another type than the model's.
    """
    if missing := [name for name in dtypes if name not in inputs]:
        raise BadInput(f"input {missing[0]!r} is missing; the model needs {', '.join(dtypes)}")
    if unknown := [name for name in inputs if name not in dtypes]:
        raise BadInput(f"the model has no input {unknown[0]!r}; it has {', '.join(dtypes)}")
    fed = {}
    for name, dtype in dtypes.items():
        array = np.asarray(inputs[name], order="C")
        if array.dtype != dtype:  # the byte order counts, too
            raise BadInput(f"input {name!r} must be {dtype}, found {array.dtype}")
        fed[name] = array
    return fed
