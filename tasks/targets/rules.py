"""What [accuracy] says of the model's outputs, checked against them before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routetune.tasks.errors import BadInput
from routetune.tasks.targets.problems import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from routetune.tasks.targets.model import TensorInfo
    from routetune.tasks.targets.schema import Target


def check_accuracy_rules(target: Target, outputs: Mapping[str, TensorInfo]) -> None:
    """Refuse rules for outputs that the model does not have, and rules that leave nothing to judge.

    Raises:
        BadInput: one sentence on the field.
    """
    accuracy = target.accuracy
    named = [(f"outputs.{name}", name) for name in accuracy.outputs]
    if accuracy.scores is not None:
        named.append(("scores", accuracy.scores))
    for field, name in named:
        if name not in outputs:
            raise BadInput(
                f"{target.path}: accuracy.{field} names {name!r}, which is not an output of the model"
                f"{nearest(name, outputs)}; its outputs are {', '.join(outputs) or '(none)'}"
            )
    if outputs and accuracy.ignored >= outputs.keys():
        raise BadInput(
            f"{target.path}: accuracy.outputs ignores every output of the model; judge one at least"
        )
    if accuracy.metric == "accuracy_drop":
        scores_of(target, outputs)


def scores_of(target: Target, outputs: Mapping[str, TensorInfo]) -> str:
    """The output that holds the scores which labels are compared with.

    Raises:
        BadInput: the model has several outputs, and accuracy.scores names none of them.
    """
    if target.accuracy.scores is not None:
        return target.accuracy.scores
    if len(outputs) != 1:
        raise BadInput(
            f'{target.path}: accuracy.metric = "accuracy_drop" needs accuracy.scores, the name of the output '
            f"that the labels belong to; the model's outputs are {', '.join(outputs)}"
        )
    return next(iter(outputs))
