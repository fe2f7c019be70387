"""The keys of `torch.nn.MultiheadAttention`, in the form that the library which fuses attention looks for."""

from __future__ import annotations

from typing import Any

import onnx_ir
from onnxscript.rewriter import pattern, rewrite


class _KeysOfOneAxis(pattern.RewriteRuleClassBase):
    """Keys whose batch and heads are one axis are turned, and then parted: part them first, and then turn.

    That module joins the two axes, and the exporter drops the way apart and back again; what is left starts
    with three dimensions, and the library knows keys of four. It costs nothing: there is one operator of each
    kind before and after.
    """

    def pattern(self, op: Any, keys: Any, shape: Any) -> Any:
        return op.Reshape(op.Transpose(keys, perm=[0, 2, 1]), shape, _outputs=["parted"])

    def check(self, context: Any, keys: Any, shape: Any, parted: Any) -> Any:
        result = pattern.MatchResult()
        sizes = [value.shape for value in (keys, parted)]
        if not all(size is not None and size.is_static() for size in sizes):
            return result.fail("shapes are not known", [keys, parted])
        (_, length, depth), apart = sizes[0].numpy(), sizes[1].numpy()
        if len(apart) != 4 or apart[2:] != (depth, length) or 0 in apart:  # 0 would copy a size
            return result.fail("it does not part the first axis alone", parted)
        return result

    def rewrite(self, op: Any, keys: Any, shape: Any, parted: Any) -> Any:
        batch, heads, depth, length = parted.shape.numpy()
        sizes = op.Constant(value_ints=[batch, heads, length, depth])
        return op.Transpose(op.Reshape(keys, sizes), perm=[0, 1, 3, 2])


def part_keys(model: onnx_ir.Model) -> None:
    """Do so wherever it is possible; the model computes what it did."""
    rule: Any = _KeysOfOneAxis  # what makes a rule of it has no types
    rewrite(model, [rule.rule()])
