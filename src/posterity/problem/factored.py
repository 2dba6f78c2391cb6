"""A weight of low rank that is never written out where it need not be.

    W = left right^T,    left [m, r],  right [n, r],  W [m, n]

passes through unmodified modules as a carrier (`posterity.problem.carrier`): a matrix product with W goes through its
r columns, so that a Linear costs r (m + n) per row instead of m n; an embedding gathers rows of `left`; a convolution
goes to r channels and then 1x1. A function without a fast path sees W itself, formed once per carrier and kept in
the autograd graph. Value and gradient (to both factors) are those of the dense W, up to rounding.

Singular Bayesian neural networks (Toure and Stephens, 2026, arXiv 2602.00387) place their posterior on the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posterity.errors import CompatibilityError, ShapeError
from posterity.problem.carrier import handles
from posterity.problem.formed import Formed, refuse_max_norm

__all__ = ["Factored"]


class Factored(Formed, parts=("left", "right")):
    """The weight W[i, j...] = sum_k left[i, k] right[j..., k], without storage of its own.

    Args:
        left: [m, r] floating point.
        right: [n, r]; or [*rest, r] for a weight of shape (m, *rest), a convolution's (out, in/groups, *kernel).
        shape: (m, *rest): `right` given as [prod(rest), r] is viewed as [*rest, r].

    One carrier serves one forward and backward pass, as any product of the factors does: build the next from the
    factors. Tied parameters share one carrier. It is read-only: writing into it raises.

    Works under autocast (W is formed in the factors' dtype), `no_grad` and `inference_mode`, and in `torch.func`
    transforms when it is built inside the transformed function; `torch.compile` leaves its code uncompiled. Not
    supported, and raises: a carrier as an *input* of `torch.vmap`, `torch.func.grad`, `torch.jit.trace` or
    `torch.export`; `nn.Embedding(max_norm=...)`; in eval, the nested tensors that `nn.TransformerEncoder` makes of a
    padding mask where only its later layers are factored.

    Raises:
        ShapeError: if the factors do not fit each other or `shape`.
        CompatibilityError: if they differ in dtype or device, or are not floating point; if W is written to.

    >>> weight = Factored(torch.ones(8, 2), torch.ones(5, 2))
    >>> weight, torch.nn.functional.linear(torch.ones(3, 5), weight).shape
    (Factored(8x5, rank 2), torch.Size([3, 8]))
    """

    left: Tensor
    right: Tensor

    @staticmethod
    def __new__(cls, left: Tensor, right: Tensor, shape: Sequence[int] | None = None) -> Factored:
        if left.ndim != 2 or right.ndim < 2 or left.shape[1] != right.shape[-1]:
            raise ShapeError(
                f"factors must be left [m, r] and right [n, r] or [*rest, r], got {tuple(left.shape)} and "
                f"{tuple(right.shape)}"
            )
        if not left.is_floating_point() or left.dtype != right.dtype or left.device != right.device:
            raise CompatibilityError(
                f"factors must share one floating dtype and device, got {left.dtype} on {left.device} and "
                f"{right.dtype} on {right.device}"
            )
        if shape is not None:
            if len(shape) < 2 or shape[0] != left.shape[0] or right[..., 0].numel() != _product(shape[1:]):
                raise ShapeError(
                    f"factors {tuple(left.shape)} and {tuple(right.shape)} do not make a weight of shape {tuple(shape)}"
                )
            if tuple(right.shape[:-1]) != tuple(shape[1:]):
                right = right.reshape(*shape[1:], right.shape[-1])
        carrier = Tensor._make_wrapper_subclass(
            cls, (left.shape[0], *right.shape[:-1]), dtype=left.dtype, device=left.device
        )
        carrier.left, carrier.right = left, right
        return carrier

    @property
    def rank(self) -> int:
        """r, the number of columns of both factors."""
        return self.left.shape[1]

    def form(self) -> Tensor:
        columns = self.right.flatten(end_dim=-2).t()
        return torch.matmul(self.left, columns).reshape(self.shape)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Factored({'x'.join(map(str, self.shape))}, rank {self.rank})"


def _product(sizes: Sequence[int]) -> int:
    return torch.Size(sizes).numel()


def _is_matrix(value: Any) -> bool:
    return isinstance(value, Factored) and value.ndim == 2


def _turned(factor: Tensor) -> Tensor:
    """factor^T [r, n], copied row by row where a CPU will differentiate by it.

    Autograd computes a factor's gradient in the layout that the factor had in the product, and BLAS needs several times
    longer for [n, r] than for [r, n].
    """
    traced = torch.is_grad_enabled() and factor.requires_grad
    return factor.t().contiguous() if factor.is_cpu and traced else factor.t()


def _through(input: Tensor, entry: Tensor, exit: Tensor, bias: Tensor | None = None) -> Tensor:
    """input entry exit^T + bias, by way of (entry^T input^T)^T, which BLAS forms in half the time."""
    inner = torch.mm(_turned(entry), input.reshape(-1, input.shape[-1]).t()).t()
    last = _turned(exit)
    found = torch.mm(inner, last) if bias is None else torch.addmm(bias, inner, last)
    return found.reshape(*input.shape[:-1], len(exit))


@handles(Factored, F.linear)
def _linear(input: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    return _through(input, weight.right, weight.left, bias) if _is_matrix(weight) else NotImplemented


@handles(Factored, torch.matmul, Tensor.matmul, Tensor.__matmul__)
def _matmul(input: Any, other: Any, *, out: Tensor | None = None) -> Tensor:
    if out is None and _is_matrix(other):
        return _through(input, other.left, other.right)
    if out is None and _is_matrix(input):
        return torch.matmul(input.left, torch.matmul(input.right.t(), other))
    return NotImplemented


@handles(Factored, torch.mm, Tensor.mm)
def _mm(input: Any, mat2: Any, *, out: Tensor | None = None) -> Tensor:
    return _matmul(input, mat2, out=out)


@handles(Factored, torch.addmm, Tensor.addmm)
def _addmm(input: Any, mat1: Any, mat2: Any, *, out: Tensor | None = None, **scales: Any) -> Tensor:
    if out is not None or not _is_matrix(mat2):
        return NotImplemented
    return torch.addmm(input, torch.mm(mat1, mat2.left), mat2.right.t(), **scales)


@handles(Factored, F.embedding)
def _embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    refuse_max_norm(max_norm)
    if not _is_matrix(weight):
        return NotImplemented
    if scale_grad_by_freq:  # scales each row of W's gradient, which the shared `right` cannot follow
        return F.embedding(input, weight.dense(), padding_idx, scale_grad_by_freq=True)
    rows = F.linear(F.embedding(input, weight.left), _turned(weight.right).t())
    if padding_idx is None:
        return rows
    # The padding row of W gets no gradient, so neither `left` nor `right` does through it.
    padding = (input == padding_idx % weight.shape[0]).unsqueeze(-1)
    return torch.where(padding, rows.detach(), rows)


def _convolution(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(
        input: Tensor,
        weight: Any,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if not isinstance(weight, Factored) or groups != 1:
            return NotImplemented
        channels = convolve(input, weight.right.movedim(-1, 0), None, stride, padding, dilation)
        pointwise = weight.left.reshape(*weight.left.shape, *[1] * (weight.ndim - 2))
        return convolve(channels, pointwise, bias)

    return rule


for _convolve in (F.conv1d, F.conv2d, F.conv3d):
    handles(Factored, _convolve)(_convolution(_convolve))


@handles(Factored, F.multi_head_attention_forward)
def _attention(*args: Any, **options: Any) -> Any:
    # Torch's own function runs, with each factored projection where it does not look for one before F.linear does.
    *front, in_weight, in_bias, bias_k, bias_v, add_zero, dropout, out_weight, out_bias = args
    if any(isinstance(other, Factored) for other in (*front, in_bias, bias_k, bias_v, out_bias)):
        return NotImplemented
    last: Callable[[Tensor], Tensor] | None = None
    if isinstance(in_weight, Factored):
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        options.update(zip(names, in_weight.chunk(3)), use_separate_proj_weight=True)
        in_weight = None
    if isinstance(out_weight, Factored):
        last = partial(F.linear, weight=out_weight.left, bias=out_bias)
        out_weight, out_bias = out_weight.right.t(), None
    args = (*front, in_weight, in_bias, bias_k, bias_v, add_zero, dropout, out_weight, out_bias)
    output, attention = F.multi_head_attention_forward(*args, **options)
    return output if last is None else last(output), attention


@handles(Factored, torch.t, Tensor.t, Tensor.T.__get__, Tensor.mT.__get__)  # type: ignore[attr-defined]
def _t(input: Any) -> Factored:
    return Factored(input.right, input.left) if _is_matrix(input) else NotImplemented


@handles(Factored, torch.transpose, torch.swapaxes, torch.swapdims, Tensor.transpose, Tensor.swapaxes, Tensor.swapdims)
def _transpose(input: Any, *dims: int, **named: int) -> Factored:
    first, second = (*dims, *named.values())
    return _t(input) if (first - second) % 2 else NotImplemented


def _cut(weight: Any, dim: int, cut: Callable[[Tensor, int], Sequence[Tensor]]) -> Any:
    """The pieces of W along `dim`, each factored again: a cut of the one factor that holds this axis."""
    if not isinstance(weight, Factored):
        return NotImplemented
    axis = dim % weight.ndim
    if axis == 0:
        return tuple(Factored(rows, weight.right) for rows in cut(weight.left, 0))
    return tuple(Factored(weight.left, columns) for columns in cut(weight.right, axis - 1))


@handles(Factored, torch.chunk, Tensor.chunk)
def _chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    return _cut(input, dim, lambda factor, axis: factor.chunk(chunks, axis))


@handles(Factored, torch.split, Tensor.split)
def _split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> Any:
    return _cut(tensor, dim, lambda factor, axis: factor.split(split_size_or_sections, axis))


@handles(Factored, torch.narrow, Tensor.narrow)
def _narrow(input: Any, dim: int, start: int, length: int) -> Any:
    pieces = _cut(input, dim, lambda factor, axis: (factor.narrow(axis, start, length),))
    return pieces if pieces is NotImplemented else pieces[0]


@handles(Factored, Tensor.__getitem__)
def _getitem(weight: Any, index: Any) -> Any:
    slices = index if isinstance(index, tuple) else (index,)
    if not isinstance(weight, Factored) or not all(isinstance(item, slice) for item in slices):
        return NotImplemented
    if not 0 < len(slices) <= weight.ndim:
        return NotImplemented
    return Factored(weight.left[slices[0]], weight.right[slices[1:]] if slices[1:] else weight.right)


def _on_both(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function on each factor; where that changes nothing, the same carrier with what it has formed."""

    def rule(input: Any, *args: Any, **kwargs: Any) -> Any:
        layout = kwargs.get("memory_format", torch.preserve_format)
        if not isinstance(input, Factored) or layout not in (torch.preserve_format, torch.contiguous_format):
            return NotImplemented
        left, right = function(input.left, *args, **kwargs), function(input.right, *args, **kwargs)
        return input if left is input.left and right is input.right else Factored(left, right)

    return rule


for _function in (
    *(Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16),
    *(Tensor.detach, torch.detach, Tensor.clone, torch.clone, Tensor.contiguous),
):
    handles(Factored, _function)(_on_both(_function))
