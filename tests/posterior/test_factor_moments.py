"""W = A B^T: exact moments against all outcomes of small discrete factors, and against draws of normal ones."""

import itertools
import math

import pytest
import torch

from posterity.errors import ShapeError
from posterity.posterior.factor_moments import (
    FactoredNormal,
    covariance,
    entry_covariance,
    gaussian_complexity,
    output_moments,
    parameter_counts,
    split_error,
    total_variance,
)

M, N, R = 7, 6, 2


def moment(m=M, n=N, r=R, shape=None, seed=0, spread=0.6):
    random = torch.Generator().manual_seed(seed)

    def numbers(*size):
        return torch.randn(*size, generator=random, dtype=torch.float64)

    left, right = numbers(m, r), numbers(n, r)
    left_std, right_std = (spread * (0.5 + numbers(k, r).sigmoid()) for k in (m, n))
    return FactoredNormal(left, left_std, right, right_std, shape or (m, n))


def outcomes(of):
    """[2^((m + n) r), m, n] every W of factors with entries mean +- std: equally likely, with these two moments."""
    m, n, r = len(of.left_mean), len(of.right_mean), of.rank
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=(m + n) * r)), dtype=torch.float64)
    left = of.left_mean + of.left_std * signs[:, : m * r].view(-1, m, r)
    right = of.right_mean + of.right_std * signs[:, m * r :].view(-1, n, r)
    return left @ right.mT


def normal_draws(of, count, seed=1):
    random = torch.Generator().manual_seed(seed)
    left = of.left_mean + of.left_std * torch.randn(count, *of.left_mean.shape, generator=random, dtype=torch.float64)
    right = of.right_mean + of.right_std * torch.randn(
        count, *of.right_mean.shape, generator=random, dtype=torch.float64
    )
    return left, right


def test_mean_std_and_covariance_are_those_of_every_outcome():
    """The formulas use two moments and independence only, so factors with two values each check them to rounding."""
    of = moment(m=3, n=2, r=2)
    drawn = outcomes(of)
    torch.testing.assert_close(of.mean, drawn.mean(0))
    torch.testing.assert_close(of.std, drawn.std(0, correction=0))
    centred = (drawn - drawn.mean(0)).flatten(1)
    torch.testing.assert_close(covariance(of).view(6, 6), centred.T @ centred / len(centred))
    torch.testing.assert_close(total_variance(of), centred.square().mean(0).sum())


def test_covariance_of_normal_factors():
    of = moment()
    count = 100_000
    left, right = normal_draws(of, count)
    flat = (left @ right.mT).flatten(1)
    flat = flat - flat.mean(0)
    found = flat.T @ flat / count
    exact = covariance(of).view(M * N, M * N)
    # a product of two such entries has std below 3.5 var_i^(1/2) var_j^(1/2) (kurtosis of a product of normals is at most
    # 9), so its mean over the draws is known to 3.5 / sqrt(count); 42^2 of them stay within 5 of these
    scale = torch.outer(exact.diagonal().sqrt(), exact.diagonal().sqrt())
    assert ((found - exact).abs() / scale).max() < 5 * 3.5 / math.sqrt(count)
    assert (exact.abs() / scale).fill_diagonal_(0).max() > 0.3  # and there is something to find


def test_entries_that_share_neither_row_nor_column_are_independent():
    of = moment()
    whole = covariance(of)
    i, j, k, l = torch.meshgrid(*(torch.arange(size) for size in (M, N, M, N)), indexing="ij")  # noqa: E741
    apart = (i != k) & (j != l)
    assert (whole[apart] == 0).all()
    assert (whole[~apart] != 0).all()
    assert torch.linalg.matrix_rank(whole.view(M * N, M * N)) == M * N  # though every draw has rank 2
    torch.testing.assert_close(whole, whole.permute(2, 3, 0, 1))
    some = torch.tensor([4, 1]), torch.tensor([0, 5]), torch.tensor([4, 2]), torch.tensor([3, 5])
    torch.testing.assert_close(entry_covariance(of, *some), whole[some])


def test_a_kernel_is_its_matrix():
    flat, kernel = moment(m=5, n=12), moment(m=5, n=12, shape=(5, 3, 2, 2))
    assert kernel.mean.shape == kernel.std.shape == (5, 3, 2, 2)
    assert kernel.std.reshape(5, 12).equal(flat.std)
    assert kernel.mean.reshape(5, 12).equal(flat.mean)


@pytest.mark.parametrize("rank", [1, 3, 11])
def test_a_prior_on_factors_has_the_variance_asked_for_and_heavy_tails(rank):
    """Entries N(0, (v / r)^(1/2)) in variance: Var W = v, excess kurtosis 6 / r."""
    v, count = 0.02, 1_000_000
    scale = torch.full((1, rank), (v / rank) ** 0.25, dtype=torch.float64)
    zero = torch.zeros_like(scale)
    of = FactoredNormal(zero, scale, zero, scale, (1, 1))
    assert of.std.item() ** 2 == pytest.approx(v, rel=1e-12)
    left, right = normal_draws(of, count)
    z2 = (left * right).sum(-1).flatten().square() / v
    assert z2.mean().item() == pytest.approx(1, abs=5 * math.sqrt((2 + 6 / rank) / count))
    # E z^8 of a product of two normals is 105^2, of a sum of r of them less: std of z^4 below 105
    assert z2.square().mean().item() - 3 == pytest.approx(6 / rank, abs=5 * 105 / math.sqrt(count))


@pytest.mark.parametrize("law", ["fixed", "diagonal", "full"])
def test_output_moments_for_any_law_of_the_input(law):
    """Against every outcome of the weights and every one of a discrete, skewed input."""
    of = moment(m=3, n=2, r=2, seed=3)
    u = torch.tensor([0.7, -1.3], dtype=torch.float64)
    if law == "fixed":
        inputs, weights, q = u[None], torch.ones(1, dtype=torch.float64), None
    else:
        mix = (
            torch.eye(2, dtype=torch.float64) if law == "diagonal" else torch.tensor([[1.0, 0.0], [0.8, 0.5]]).double()
        )
        # a value of 2 with 1/5 and -1/2 with 4/5: mean 0, variance 1, skewed
        pairs = list(itertools.product((0, 1), repeat=2))
        inputs = u + torch.tensor([[2.0 if k else -0.5 for k in pair] for pair in pairs]).double() @ mix.T
        weights = torch.tensor([math.prod(0.2 if k else 0.8 for k in pair) for pair in pairs]).double()
        q = mix @ mix.T
    mean, (factor, diagonal) = output_moments(of, u, q)
    y = torch.einsum("smn,an->sam", outcomes(of), inputs)
    share = weights / len(y)
    expected = (share[:, None] * y).sum((0, 1))
    torch.testing.assert_close(mean, expected)
    centred = y - expected
    torch.testing.assert_close(
        factor @ factor.mT + torch.diag(diagonal), torch.einsum("a,sai,saj->ij", share, centred, centred)
    )


def test_a_constant_beside_the_factors_moves_the_mean_only():
    of = moment(m=3, n=4, r=2, shape=(3, 2, 2))
    base = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    moved = of._replace(base=base)
    torch.testing.assert_close(moved.mean, base + of.mean)
    assert moved.std.equal(of.std)
    assert covariance(moved).equal(covariance(of))
    assert total_variance(moved) == total_variance(of)
    t = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    assert split_error(base + t, moved) == pytest.approx(split_error(t, of))
    u = torch.tensor([0.7, -1.3, 0.2, 0.5], dtype=torch.float64)
    root = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10))
    points = torch.cat([u + 2 * root.T, u - 2 * root.T])  # mean u, covariance root root^T
    drawn = outcomes(of) + base.reshape(3, 4)
    for q, inputs in ((None, u[None]), (root @ root.T, points)):
        mean, (factor, diagonal) = output_moments(moved, u, q)
        y = torch.einsum("smn,an->sam", drawn, inputs).flatten(0, 1)
        torch.testing.assert_close(mean, y.mean(0))
        expected = (y - y.mean(0)).T @ (y - y.mean(0)) / len(y)
        torch.testing.assert_close(factor @ factor.mT + torch.diag(diagonal), expected)


def test_output_moments_take_batches_and_singular_covariances():
    of = moment(m=7, n=5, r=3)
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    zero = torch.zeros(4, 3, 5, 5, dtype=torch.float64)
    mean, (factor, diagonal) = output_moments(of, x)
    assert mean.shape == diagonal.shape == (4, 3, 7)
    assert factor.shape == (4, 3, 7, 3)
    again, (other, rest) = output_moments(of, x, zero)
    torch.testing.assert_close(mean, again)
    torch.testing.assert_close(diagonal, rest)
    torch.testing.assert_close(factor @ factor.mT, other @ other.mT)
    still = of._replace(left_std=torch.zeros_like(of.left_std), right_std=torch.zeros_like(of.right_std))
    one = x[0, 0]  # a rank-one covariance through fixed factors: C has rank 1 of 3
    _, (factor, diagonal) = output_moments(still, one, torch.outer(one, one))
    assert diagonal.abs().max() == 0
    torch.testing.assert_close(factor @ factor.mT, torch.outer(still.mean @ one, still.mean @ one))
    with pytest.raises(ShapeError, match=r"takes 5 inputs, got a mean of shape \(4,\)"):
        output_moments(of, torch.zeros(4, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"covariance of shape \(5,\)"):
        output_moments(of, x, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_the_error_of_a_weight_splits_into_rank_learning_and_variance(seed):
    of = moment(m=3, n=2, r=1, seed=seed)
    w0 = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(10 + seed))
    found = split_error(w0, of)
    values = torch.linalg.svdvals(w0)
    assert found.rank_bias == pytest.approx(values[1:].norm().item())
    assert found.rank_bias <= found.distance <= found.learning + found.rank_bias + 1e-12
    squares = (w0 - outcomes(of)).square().sum((1, 2))
    assert found.expected_square == pytest.approx(squares.mean().item())


def test_the_best_weight_of_its_rank_has_nothing_to_learn():
    w0 = torch.randn(7, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    u, s, vh = torch.linalg.svd(w0.reshape(7, 6))
    root = s[:2].sqrt()
    zero = torch.zeros(7, 2, dtype=torch.float64), torch.zeros(6, 2, dtype=torch.float64)
    best = FactoredNormal(u[:, :2] * root, zero[0], vh[:2].T * root, zero[1], (7, 3, 2))
    found = split_error(w0, best)
    assert found.learning < 1e-12
    assert found.variance == 0
    assert found.distance == pytest.approx(found.rank_bias)
    with pytest.raises(ShapeError, match=r"the matrix has shape \(7, 6\)"):
        split_error(w0.reshape(7, 6), best)


def test_parameter_counts():
    assert parameter_counts((30522, 256), 16) == {
        "low_rank": 984_896,
        "mean_field": 15_627_264,
        "deterministic": 7_813_632,
    }
    assert parameter_counts((8, 3, 5, 5), 2)["low_rank"] == 2 * 2 * (8 + 75)


def test_gaussian_complexity_of_one_layer_is_a_tight_bound():
    """sup over |W|_F <= b of sum_i <g_i, W x_i> / N is b |sum_i g_i x_i^T|_F / N: its mean is just below the bound."""
    x = torch.randn(31, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    bound = gaussian_complexity(float(x.norm()), 31, 2.0, [1.0], [13], [13])
    g = torch.randn(200, 31, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    reached = 2.0 * (g.mT @ x).norm(dim=(1, 2)) / 31
    assert 0.9 * bound < reached.mean().item() < bound


def test_gaussian_complexity_grows_with_norms_and_ranks():
    norms, ranks, widths = [1.5, 0.7, 2.0], [4, 5, 3], [11, 13, 3]
    value = gaussian_complexity(3.0, 100, 2.5, norms, ranks, widths)
    for layer in range(3):  # a network is homogeneous in each of its layers, and so is its complexity
        doubled = [2 * c if j == layer else c for j, c in enumerate(norms)]
        first = 5.0 if layer == 0 else 2.5
        assert gaussian_complexity(3.0, 100, first, doubled, ranks, widths) == pytest.approx(2 * value)
    by_hand = 3 / 100 * (2.5 * 11**0.5 * 1.4 + 1.05 * 65**0.5 * 2 + 2.1 * 3)
    assert value == pytest.approx(by_hand)
    assert gaussian_complexity(3.0, 100, 2.5, norms, [4, 1, 1], widths) < value
    with pytest.raises(ShapeError, match="got 3, 2 and 3"):
        gaussian_complexity(3.0, 100, 2.5, norms, ranks[:2], widths)
