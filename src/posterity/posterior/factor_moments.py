"""A weight that is the product of two independent normal factors: its moments, what it says, how far it is from another.

    W = A B^T,    A_ik ~ N(M_ik, S_ik^2),  B_jk ~ N(P_jk, R_jk^2),  all entries independent,  A [m, r],  B [n, r]

    E W             = M P^T
    Cov(W_ij, W_kl) = [i = k] sum_s S_is^2 P_js P_ls + [j = l] sum_s M_is M_ks R_js^2 + [i = k][j = l] sum_s S_is^2 R_js^2

Entries that share neither row nor column are independent. Every draw has rank r at most, and so has E W, but the covariance
of the m n entries is of full rank. A kernel (m, *rest) is read as the matrix [m, prod(rest)]. Singular Bayesian neural
networks (Toure and Stephens, 2026, arXiv 2602.00387) have such weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.errors import ShapeError

__all__ = [
    "FactoredNormal",
    "SplitError",
    "covariance",
    "entry_covariance",
    "gaussian_complexity",
    "output_moments",
    "parameter_counts",
    "split_error",
    "total_variance",
]


class FactoredNormal(NamedTuple):
    """W = W0 + A B^T with independent normal entries of A and B; `mean` and `std` are exact, of each entry of W."""

    left_mean: Tensor  # [m, r]
    left_std: Tensor
    right_mean: Tensor  # [n, r]
    right_std: Tensor
    shape: tuple[int, ...]  # of the weight: (m, n), or (m, *rest) with n = prod(rest)
    base: Tensor | None = None  # [*shape] W0, constant; 0 unless given

    @property
    def mean(self) -> Tensor:
        """[*shape] W0 + M P^T."""
        product = (self.left_mean @ self.right_mean.T).reshape(self.shape)
        return product if self.base is None else self.base + product

    @property
    def std(self) -> Tensor:
        """[*shape] the root of sum_s (M^2 + S^2) R^2 + S^2 P^2: of each entry, the others integrated out."""
        spread = self.left_std.square()
        both = (self.left_mean.square() + spread) @ self.right_std.square().T
        return (both + spread @ self.right_mean.square().T).sqrt().reshape(self.shape)

    @property
    def rank(self) -> int:
        """r, the number of columns of both factors."""
        return self.left_mean.shape[1]


def entry_covariance(moment: FactoredNormal, i: Tensor, j: Tensor, k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """[...] Cov(W_ij, W_kl), exact; see the head of this file.

    Args:
        i, k: [...] int64 rows, in [0, m); j, l: [...] int64 columns of the matrix, in [0, n). Broadcast together.
    """
    left, right = moment.left_std.square(), moment.right_std.square()
    row, column = (i == k).to(left), (j == l).to(left)
    along_row = (left[i] * moment.right_mean[j] * moment.right_mean[l]).sum(-1)
    along_column = (moment.left_mean[i] * moment.left_mean[k] * right[j]).sum(-1)
    return row * along_row + column * along_column + row * column * (left[i] * right[j]).sum(-1)


def covariance(moment: FactoredNormal) -> Tensor:
    """[m, n, m, n] Cov(W_ij, W_kl) of all pairs: (m n)^2 numbers, for small weights."""
    m, n = len(moment.left_mean), len(moment.right_mean)
    rows, columns = torch.arange(m), torch.arange(n)
    i, j = rows[:, None, None, None], columns[:, None, None]
    return entry_covariance(moment, i, j, rows[:, None], columns)


def total_variance(moment: FactoredNormal) -> Tensor:
    """() float64 tr Cov(W) = sum_s |S_s|^2 |P_s|^2 + |M_s|^2 |R_s|^2 + |S_s|^2 |R_s|^2, of columns s. O(r (m + n))."""
    factors = moment.left_mean, moment.left_std, moment.right_mean, moment.right_std
    m, s, p, r = (factor.double().square().sum(0) for factor in factors)
    return (s * p + m * r + s * r).sum()


def output_moments(
    moment: FactoredNormal, mean: Tensor, covariance: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Mean and covariance of y = W x, for every law of x (independent of W) with these two moments.

        z = B^T x:  E z = P^T u,    C = Cov z = P^T Q P + diag_s( sum_j R_js^2 (u_j^2 + Q_jj) )            [r, r]
        y = A z:    E y = M E z,    Cov y     = M C M^T + diag_i( sum_s S_is^2 ((E z_s)^2 + C_ss) )

    Exact; y itself is not normal. The covariance is of rank r plus a diagonal: F F^T + diag(d) with F = M C^(1/2). With
    W0 beside the factors E y has W0 u more, and where Q is given F is [ (E W) Q^(1/2), M diag_s(sum_j ...)^(1/2) ].

    Args:
        mean: [..., n] u = E x, or x itself.
        covariance: [..., n, n] Q = Cov x; 0 unless given.

    Returns:
        [..., m] the mean; [..., m, r] F (with W0 and Q n + r columns) and [..., m] d.

    Raises:
        ShapeError: an input of another length than n.
    """
    n = moment.right_mean.shape[0]
    if mean.shape[-1] != n or (covariance is not None and covariance.shape[-2:] != (n, n)):
        raise ShapeError(f"the weight takes {n} inputs, got a mean of shape {tuple(mean.shape)}" + (
            "" if covariance is None else f" and a covariance of shape {tuple(covariance.shape)}"
        ))  # fmt: skip
    hidden = mean @ moment.right_mean
    second = mean.square() if covariance is None else mean.square() + covariance.diagonal(dim1=-2, dim2=-1)
    own = second @ moment.right_std.square()
    output, variance = hidden @ moment.left_mean.T, own
    factor = moment.left_mean * own.sqrt().unsqueeze(-2)
    if covariance is not None:
        passed = moment.right_mean.T @ covariance @ moment.right_mean
        variance = own + passed.diagonal(dim1=-2, dim2=-1)
        if moment.base is None:
            factor = moment.left_mean @ _root(passed + torch.diag_embed(own))
        else:
            factor = torch.cat([moment.mean.reshape(-1, n) @ _root(covariance), factor], -1)
    if moment.base is not None:
        output = output + mean @ moment.base.reshape(-1, n).T
    diagonal = (hidden.square() + variance) @ moment.left_std.square().T
    return output, (factor, diagonal)


def _root(matrix: Tensor) -> Tensor:
    """[..., k, k] L with L L^T = the matrix, which may be singular: Cholesky would not do."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)


class SplitError(NamedTuple):
    """How far W = A B^T is from a matrix T, in Frobenius norms, and why; T_r is the best of rank r.

    |T - E W| <= learning + rank_bias           Eckart and Young (1936), Mirsky (1960), and the triangle
    E |T - W|^2 = |T - E W|^2 + tr Cov W        an equality
    """

    rank_bias: float  # |T - T_r|, the root of the sum of the squared singular values after the first r
    learning: float  # |T_r - E W|
    distance: float  # |T - E W|
    variance: float  # tr Cov W

    @property
    def expected_square(self) -> float:
        """E |T - W|^2."""
        return self.distance**2 + self.variance


def split_error(matrix: Tensor, moment: FactoredNormal) -> SplitError:
    """The error of a factored weight against a full one, split into rank, learning and variance; in float64.

    Args:
        matrix: [*shape] T; where the weight has a constant W0, T - W0 is what the factors are compared with.

    Raises:
        ShapeError: another shape than the weight's.
    """
    if tuple(matrix.shape) != tuple(moment.shape):
        raise ShapeError(f"the matrix has shape {tuple(matrix.shape)}, the factored weight {tuple(moment.shape)}")
    apart = matrix if moment.base is None else matrix.double() - moment.base.double()
    full = apart.double().reshape(len(moment.left_mean), -1)
    mean = moment.left_mean.double() @ moment.right_mean.double().T
    u, values, vh = torch.linalg.svd(full, full_matrices=False)
    r = moment.rank
    best = (u[:, :r] * values[:r]) @ vh[:r]
    norm = torch.linalg.matrix_norm
    return SplitError(
        rank_bias=float(torch.linalg.vector_norm(values[r:])),
        learning=float(norm(best - mean)),
        distance=float(norm(full - mean)),
        variance=float(total_variance(moment)),
    )


def parameter_counts(shape: Sequence[int], rank: int) -> dict[str, int]:
    """Numbers that describe a weight of m n entries: {"low_rank": 2 r (m + n), "mean_field": 2 m n, "deterministic": m n}.

    >>> parameter_counts((10, 64), 8)
    {'low_rank': 1184, 'mean_field': 1280, 'deterministic': 640}
    """
    m, n = shape[0], math.prod(shape[1:])
    return {"low_rank": 2 * rank * (m + n), "mean_field": 2 * m * n, "deterministic": m * n}


def gaussian_complexity(
    input_norm: float,
    rows: int,
    first_norm: float,
    spectral_norms: Sequence[float],
    ranks: Sequence[int],
    widths: Sequence[int],
    constant: float = 1.0,
) -> float:
    """A bound on the Gaussian complexity of networks with layers of bounded norm and rank, up to constants.

        |X|_F / N ( |W_1|_F sqrt(h_1) prod_{i > 1} c C_i  +  sum_{j > 1} prod_{i <= j} C_i sqrt(r_j h_j) prod_{i > j} c C_i )

    For activations with Lipschitz constant 1 that keep 0. Ranks add up over the layers instead of being multiplied; the
    numbers are far above any error: compare ranks with it, do not promise errors.

    Args:
        input_norm: |X|_F, the root of the sum of all squared inputs; rows: N.
        first_norm: |W_1|_F, a bound of the first layer's Frobenius norm.
        spectral_norms, ranks, widths: C_j, r_j and outputs h_j of each layer, the first included.
        constant: c, the unknown constant of the chain rule.

    Raises:
        ShapeError: lists of different lengths, or empty ones.

    Source: Pinto, Rangamani and Poggio (2025, arXiv 2411.13733), by the chain rule of Maurer (2016).
    """
    layers = len(widths)
    if not layers or len(spectral_norms) != layers or len(ranks) != layers:
        raise ShapeError(
            f"a norm, a rank and a width for each layer: got {len(spectral_norms)}, {len(ranks)} and {layers} of them"
        )
    after = [math.prod(constant * norm for norm in spectral_norms[j + 1 :]) for j in range(layers)]
    total = first_norm * math.sqrt(widths[0]) * after[0]
    for j in range(1, layers):
        total += math.prod(spectral_norms[: j + 1]) * math.sqrt(ranks[j] * widths[j]) * after[j]
    return input_norm / rows * total
