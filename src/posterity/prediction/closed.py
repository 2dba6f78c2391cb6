"""Mean class probabilities of normal logits in closed form, where no points are laid on them.

    probit         softmax( m_c / sqrt(1 + pi v_c / 8) )                 each class with its own v       MacKay (1992)
    second-order   p_c (1 + (v_c (1 - 2 p_c) - sum_k p_k v_k (1 - 2 p_k)) / 2),   p = softmax(m)
                   p_c (1 + (S_cc - 2 (S p)_c + 2 p' S p - sum_k p_k S_kk) / 2)   of a known covariance S

The first holds for every v, roughly: where variances differ, what all means share moves it, which moves no softmax. The
second is p plus half the trace of its Hessian times S, exact to first order in v, and for v below 1: its factor is held at
1e-30 where it would be negative (0 would make an NLL infinite), and the result is normalised.

Neither holds a mutual information of label and weights: the epistemic part is that of points on the same logits, and the
rest of the entropy is aleatoric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posterity.problem.likelihoods.base import exact

__all__ = ["Closed", "NormalLogits", "probit", "second_order"]

Closed: TypeAlias = Literal["probit", "second-order"]

TINY = 1e-30


class NormalLogits(NamedTuple):
    """Logits of which a head in closed form makes probabilities.

    Args:
        mean, var: [rows, classes, ...]
        cov: [rows, classes, classes, positions] where it is known.
        head: which form.
        points: gives what stands for draws of them, [rows, classes, ...] each.
    """

    mean: Tensor
    var: Tensor
    cov: Tensor | None
    head: Closed
    points: Callable[[], Iterable[Tensor]]

    def at(self, temperature: Tensor | float, wide: Callable[[Tensor], Tensor] = exact) -> Tensor:
        """[rows, classes, ...] logits of the mean probabilities of these logits over the temperature."""
        mean, var = wide(self.mean) / temperature, wide(self.var) / temperature**2
        if self.head == "probit":
            return probit(mean, var)
        return second_order(mean, var, None if self.cov is None else self.cov.to(mean) / temperature**2)


def probit(mean: Tensor, var: Tensor) -> Tensor:
    """Logits of the mean probabilities, from means and variances of the same shape."""
    return mean / (1 + math.pi / 8 * var).sqrt()


def second_order(mean: Tensor, var: Tensor, cov: Tensor | None = None) -> Tensor:
    """Logits of the mean probabilities.

    Args:
        mean, var, cov: as of `NormalLogits`.
    """
    log_p = torch.log_softmax(mean, 1)
    p = log_p.exp()
    if cov is None:
        own = var * (1 - 2 * p)
        pull = own - (p * own).sum(1, keepdim=True)
    else:
        q = p.flatten(2) if p.ndim > 2 else p.unsqueeze(-1)
        shared, own = torch.einsum("rcdp,rdp->rcp", cov, q), cov.diagonal(dim1=1, dim2=2).mT
        pull = own - 2 * shared + (q * (2 * shared - own)).sum(1, keepdim=True)
        pull = pull.reshape(p.shape)
    return log_p + (1 + pull / 2).clamp_min(TINY).log()
