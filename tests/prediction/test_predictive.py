"""What is predicted from draws: against brute force, torch.distributions, scipy and Monte Carlo, at the edges too."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributions as D
from scipy import stats
from torch import Tensor

from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.prediction.predictive import (
    CategoricalPredictive,
    GaussianMixture,
    MixturePredictive,
    MultilabelPredictive,
    PoissonMixture,
    Predictive,
    Reducer,
    StudentMixture,
    concat,
)
from posterity.problem.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    Multilabel,
    Poisson,
    StudentT,
    Tokens,
)
from posterity.problem.scaling import Scaling

ROWS, OUTPUTS, DRAWS, CLASSES = 7, 3, 11, 5
SCALING = Scaling(torch.tensor([10.0, -4.0, 0.5]), torch.tensor([2.0, 0.1, 30.0]))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reduce(likelihood: Likelihood, draws: object, own: object = None, **options: object) -> Predictive:
    """A predictive of outputs `[draw, row, ...]` (or a list), and of parameters of each draw."""
    reducer = Reducer(likelihood, **options)
    for index, outputs in enumerate(draws):
        reducer.add(outputs, None if own is None else {name: leaf[index] for name, leaf in own.items()})
    return reducer.result()


# name, likelihood, outputs [draw, row, ...], own parameters [draw, ...], raw targets
CASES = {
    "categorical": (Categorical(), normal(DRAWS, ROWS, CLASSES), {}, [0, 4, 2, 1, 3, 0, 2]),
    "strings": (Categorical(classes=tuple("abcde")), normal(DRAWS, ROWS, CLASSES), {}, list("aecbdac")),
    "dense": (Categorical(), normal(DRAWS, ROWS, CLASSES, 2), {}, torch.arange(14).reshape(7, 2) % 5),
    "bernoulli": (Bernoulli(), normal(DRAWS, ROWS, 1), {}, [0, 1, 1, 0, 1, 0, 0]),
    "multilabel": (Multilabel(), normal(DRAWS, ROWS, 3), {}, torch.arange(21).reshape(7, 3) % 2),
    "tokens": (Tokens(), normal(DRAWS, ROWS, 4, CLASSES), {}, torch.arange(28).reshape(7, 4) % 5),
    "gaussian": (
        Gaussian(scaling=SCALING),
        normal(DRAWS, ROWS, OUTPUTS),
        {"log_std": 0.3 * normal(DRAWS, OUTPUTS, seed=1)},
        SCALING.location(normal(ROWS, OUTPUTS, seed=2)),
    ),
    "heteroscedastic": (
        Heteroscedastic(scaling=Scaling(torch.tensor([1e3]), torch.tensor([10.0]))),
        normal(DRAWS, ROWS, 2),
        {},
        1000 + 10 * normal(ROWS, seed=2),
    ),
    "student-t": (
        StudentT(scaling=SCALING, df=5),
        normal(DRAWS, ROWS, OUTPUTS),
        {"log_scale": 0.3 * normal(DRAWS, OUTPUTS, seed=1)},
        SCALING.location(normal(ROWS, OUTPUTS, seed=2)),
    ),
    "poisson": (Poisson(), 1 + normal(DRAWS, ROWS), {}, [0, 1, 2, 3, 5, 8, 13]),
}
CLASS_CASES = ["categorical", "strings", "dense", "bernoulli", "multilabel", "tokens"]
MIXTURES = ["gaussian", "heteroscedastic", "student-t", "poisson"]


def predicted(name: str, **options: object) -> Predictive:
    likelihood, outputs, own, _ = CASES[name]
    return reduce(likelihood, outputs, own, **options)


# --- all kinds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_rows_join_to_the_whole(name: str) -> None:
    likelihood, outputs, own, targets = CASES[name]
    whole = reduce(likelihood, outputs, own)
    parts = [reduce(likelihood, outputs[:, rows], own) for rows in (slice(0, 2), slice(2, 3), slice(3, 7))]
    for joined in (Predictive.concat(parts), concat([whole[:2], whole[[2]], whole[torch.arange(7) > 2]])):
        assert type(joined) is type(whole)
        assert len(joined) == ROWS
        for tensor in whole.row_axis:
            one, other = getattr(joined, tensor), getattr(whole, tensor)
            # float32 of the same float64 sums: at most the last bit differs, from vectorised kernels
            assert one is other is None or torch.allclose(one, other, rtol=2e-7, atol=2e-7)
        torch.testing.assert_close(joined.log_prob(targets), whole.log_prob(targets), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_draws_does_not_matter(name: str) -> None:
    likelihood, outputs, own, targets = CASES[name]
    one = reduce(likelihood, outputs, own).log_prob(targets)
    other = reduce(likelihood, outputs.flip(0), {key: leaf.flip(0) for key, leaf in own.items()}).log_prob(targets)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # dense positions are summed in float32


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_the_log_of_the_mean_probability(name: str) -> None:
    likelihood, outputs, own, targets = CASES[name]
    terms = []
    for index, z in enumerate(outputs):
        parameters = {key: leaf[index].double() for key, leaf in own.items()}
        rows = likelihood.log_prob(z.double(), likelihood.canonical(targets, z.double()), parameters)
        terms.append(rows - (likelihood.scaling.log_volume if getattr(likelihood, "scaling", None) else 0))
    wanted = torch.logsumexp(torch.stack(terms), 0) - math.log(DRAWS)
    if name in ("dense", "multilabel", "tokens"):  # the mean is taken position by position, and summed
        pred = predicted(name)
        canonical = pred.canonical(targets)
        p = torch.stack([likelihood.log_probs(z.double()).exp() for z in outputs]).mean(0).log()
        counted = canonical != -100
        wanted = (p.gather(-1, canonical.clamp_min(0)[..., None])[..., 0] * counted).flatten(1).sum(1)
    found = predicted(name).log_prob(targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)  # float32 of values below 100


@pytest.mark.parametrize("name", CASES)
def test_one_draw_is_the_likelihood_itself(name: str) -> None:
    likelihood, outputs, own, targets = CASES[name]
    pred = reduce(likelihood, outputs[:1], own)
    z, parameters = outputs[0], {key: leaf[0] for key, leaf in own.items()}
    wanted = likelihood.log_prob(z, likelihood.canonical(targets, z), parameters)
    wanted = wanted - (likelihood.scaling.log_volume if getattr(likelihood, "scaling", None) else 0)
    torch.testing.assert_close(pred.log_prob(targets), wanted, rtol=5e-6, atol=5e-6)  # float32 sums of 12 terms
    assert bool((pred.epistemic == 0).all())
    assert pred.draws == 1


@pytest.mark.parametrize("name", CASES)
def test_thirty_identical_members_disagree_on_nothing(name: str) -> None:
    likelihood, outputs, own, _ = CASES[name]
    same = reduce(
        likelihood, outputs[:1].expand(30, *outputs.shape[1:]), {k: leaf[:1].repeat(30, 1) for k, leaf in own.items()}
    )
    alone = reduce(likelihood, outputs[:1], own)
    assert bool((same.epistemic == 0).all())
    assert same.aleatoric.equal(alone.aleatoric)


@pytest.mark.parametrize("name", CASES)
def test_repr_says_rows_draws_and_via(name: str) -> None:
    text = repr(predicted(name))
    assert "rows=7" in text
    assert "draws=11" in text
    assert "via='draws'" in text
    assert "tensor" not in text


def test_repr_of_each_kind() -> None:
    assert repr(predicted("categorical")) == "CategoricalPredictive(rows=7, classes=5, draws=11, via='draws')"
    assert repr(predicted("dense")) == "CategoricalPredictive(rows=7, positions=(2,), classes=5, draws=11, via='draws')"
    assert repr(predicted("multilabel")) == "MultilabelPredictive(rows=7, labels=3, draws=11, via='draws')"
    assert repr(predicted("gaussian")) == "GaussianMixture(rows=7, outputs=3, draws=11, via='draws')"
    assert repr(predicted("poisson")) == "PoissonMixture(rows=7, draws=11, via='draws')"


def test_misfits_are_named() -> None:
    reducer = Reducer(Categorical())
    with pytest.raises(DataError, match="no draws"):
        reducer.result()
    reducer.add(torch.zeros(3, 2))
    with pytest.raises(ShapeError, match=r"draw 1 .*\(3, 4\).*\(3, 2\)"):
        reducer.add(torch.zeros(3, 4))
    with pytest.raises(CompatibilityError, match="a tuple of 2"):
        reducer.add((torch.zeros(3), torch.zeros(3)))
    with pytest.raises(DataError, match="0 blocks"):
        concat([])
    with pytest.raises(CompatibilityError, match="draws is 1 and 2"):
        concat([reducer.result(), reduce(Categorical(), torch.zeros(2, 3, 2))])
    with pytest.raises(CompatibilityError, match="via is 'draws' and 'mean'"):
        concat([reducer.result(), reducer.result(via="mean")])
    with pytest.raises(CompatibilityError, match="some blocks of rows hold per_draw"):
        concat([reducer.result(), reduce(Categorical(), torch.zeros(1, 3, 2), keep_draws=True)])
    with pytest.raises(IndexError, match="row 3 of 3"):
        reducer.result()[3]
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(CompatibilityError, match="temperature"):
            Reducer(Categorical(), temperature)
    with pytest.raises(CompatibilityError, match="poisson takes temperature 1"):
        Reducer(Poisson(), 2.0)


def test_a_likelihood_that_nobody_knows() -> None:
    class Mine(Likelihood):
        name = "mine"
        canonical = log_prob = None

    with pytest.raises(CompatibilityError, match=r"Mine.*reducer.register"):
        Reducer(Mine())


def test_results_of_inference_mode_are_ordinary_tensors() -> None:
    reducer = Reducer(Gaussian(std=1.0))
    with torch.inference_mode():
        reducer.add(torch.zeros(3, requires_grad=True))
    weight = torch.ones(3, requires_grad=True)
    (reducer.result().mean * weight).sum().backward()
    assert weight.grad is not None


def test_rows_by_index() -> None:
    pred = predicted("gaussian")
    assert len(pred[-1]) == 1
    assert pred[-1].mean.equal(pred.mean[-1:])
    assert pred[3].mean.equal(pred.mean[3:4])
    assert pred[[5, 2]].mean.equal(pred.mean[[5, 2]])


@pytest.mark.parametrize("name", CASES)
def test_no_rows_are_no_error(name: str) -> None:
    likelihood, outputs, own, _ = CASES[name]
    pred = reduce(likelihood, outputs[:, :0], own)
    assert len(pred) == 0
    assert len(pred.epistemic) == 0
    if isinstance(pred, MixturePredictive):
        assert len(pred.interval()[0]) == 0
        assert pred.crps(torch.zeros(pred.mean.shape)).shape == pred.mean.shape


# --- classes ---------------------------------------------------------------------------------------------------------


def test_entropies_of_four_draws_by_hand() -> None:
    p = torch.tensor(
        [
            [[0.7, 0.2, 0.1], [1.0, 0, 0]],
            [[0.1, 0.8, 0.1], [1, 0, 0]],
            [[0.3, 0.3, 0.4], [1, 0, 0]],
            [[0.5, 0.5, 0], [0, 1, 0]],
        ]
    )
    pred = reduce(Categorical(), p.log())  # log 0 = -inf: masked classes

    def entropy(row: Tensor) -> float:
        return -sum(x * math.log(x) for x in row.tolist() if x > 0)

    for row in range(2):
        mean = p[:, row].mean(0)
        aleatoric = sum(entropy(draw) for draw in p[:, row]) / 4
        assert pred.probs[row].tolist() == pytest.approx(mean.tolist(), abs=1e-7)
        assert pred.entropy[row].item() == pytest.approx(entropy(mean), abs=1e-6)
        assert pred.aleatoric[row].item() == pytest.approx(aleatoric, abs=1e-6)
        assert pred.epistemic[row].item() == pytest.approx(entropy(mean) - aleatoric, abs=1e-6)
    assert pred.aleatoric[1] == 0
    assert pred.index.tolist() == [1, 0]
    assert pred.confidence.tolist() == pytest.approx([0.45, 0.75])


def test_a_certain_row() -> None:
    pred = reduce(Categorical(), torch.tensor([[[1e3, 0.0, 0.0]]] * 2))
    assert pred.probs.tolist() == [[1.0, 0.0, 0.0]]
    assert pred.log_probs.tolist() == [[0.0, -1000.0, -1000.0]]
    assert (pred.entropy.item(), pred.aleatoric.item(), pred.epistemic.item()) == (0.0, 0.0, 0.0)
    assert pred.log_prob([1]).item() == -1000.0


def test_the_mean_is_of_probabilities_and_not_of_logs() -> None:
    pred = reduce(Categorical(), torch.tensor([[[1e3, 0.0]], [[0.0, 1e3]]]))
    assert pred.log_probs[0].tolist() == pytest.approx([math.log(0.5)] * 2)
    assert pred.epistemic.item() == pytest.approx(math.log(2))
    far = reduce(Categorical(), torch.tensor([[[0.0, 1e3]], [[0.0, 2e3]], [[0.0, 1500.0]]]))
    assert far.log_probs[0, 0].item() == pytest.approx(-1000 - math.log(3), rel=1e-6)


@pytest.mark.parametrize("shape", [(1009, 5), (1009, 5, 2)])
def test_what_rounding_leaves_of_agreement_is_never_negative(shape: tuple) -> None:
    z = normal(*shape).double()
    pred = reduce(Categorical(), [z, z + 1e-9 * normal(*shape, seed=1)])  # true value 1e-19, rounding 1e-16
    assert bool((pred.epistemic >= 0).all())


@pytest.mark.parametrize("name", CLASS_CASES)
def test_probabilities_and_entropies_agree_with_brute_force(name: str) -> None:
    likelihood, outputs, _, _ = CASES[name]
    pred = predicted(name)
    p = torch.stack([likelihood.log_probs(z.double()).exp() for z in outputs])  # [draw, row, ..., class]
    total, expected = (torch.special.entr(q).sum(-1) for q in (p.mean(0), p))
    expected = expected.mean(0)
    if name == "multilabel":
        total, expected = total.sum(1), expected.sum(1)
        torch.testing.assert_close(pred.probs.double(), p.mean(0)[..., 1], rtol=1e-6, atol=1e-7)
    else:
        torch.testing.assert_close(pred.probs.double(), p.mean(0), rtol=1e-6, atol=1e-7)
        assert pred.probs.sum(-1).sub(1).abs().max() < 1e-6
    # dense positions run in float32: entropies of at most log 5, 1e-6 of it
    torch.testing.assert_close(pred.entropy.double(), total, rtol=0, atol=2e-6)
    torch.testing.assert_close(pred.aleatoric.double(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(pred.epistemic.double(), total - expected, rtol=0, atol=4e-6)
    for tensor in (pred.probs, pred.entropy, pred.aleatoric, pred.epistemic, pred.confidence):
        assert tensor.dtype == torch.float32
        assert len(tensor) == ROWS


def test_labels_are_the_users_own() -> None:
    z = torch.eye(3)[None] * 5
    assert reduce(Categorical(classes=("x", "y", "z")), z).label.tolist() == ["x", "y", "z"]
    assert isinstance(reduce(Categorical(classes=("x", "y", "z")), z).label, np.ndarray)
    assert reduce(Categorical(classes=(3, 5, 9)), z).label.tolist() == [3, 5, 9]
    assert reduce(Categorical(classes=(0, 1)), z).label.tolist() == [0, 1, 2]
    two = torch.tensor([[-1.0, 1.0]])
    assert reduce(Bernoulli(classes=("no", "yes")), two).label.tolist() == ["no", "yes"]
    booleans = reduce(Bernoulli(classes=(False, True)), two).label
    assert booleans.dtype == torch.bool
    assert booleans.tolist() == [False, True]
    assert reduce(Bernoulli(), two[..., None]).label.tolist() == [0, 1]
    assert reduce(Multilabel(), torch.tensor([[[3.0, -3.0]]])).label.tolist() == [[1, 0]]


def test_two_classes_from_one_logit() -> None:
    pred = reduce(Bernoulli(), torch.tensor([[0.0, 40.0, -800.0]]))
    assert pred.probs.shape == (3, 2)
    assert pred.probs[:, 1].tolist() == [0.5, 1.0, 0.0]
    assert pred.log_probs[1, 0].item() == pytest.approx(-40.0)  # 1 - p = e^-40 is not lost
    assert pred.log_prob([1, 0, 1]).tolist() == pytest.approx([math.log(0.5), -40.0, -800.0])
    assert pred.log_prob([0.25, 0.5, -100.0]).tolist() == pytest.approx([math.log(0.5), -20.0, 0.0])


def test_predictions_do_not_carry_class_weights() -> None:
    z = normal(DRAWS, ROWS, CLASSES)
    plain = reduce(Categorical(), z).log_prob([0] * ROWS)
    assert reduce(Categorical(class_weight=(9.0, 1, 1, 1, 1)), z).log_prob([0] * ROWS).equal(plain)


def test_tokens_speak_about_the_next_one() -> None:
    likelihood, outputs, _, targets = CASES["tokens"]
    pred = predicted("tokens")
    assert pred.probs.shape == (ROWS, 4, CLASSES)
    assert pred.entropy.shape == (ROWS, 4)
    assert pred.canonical(targets)[:, :-1].equal(targets[:, 1:])
    assert pred.canonical(targets)[:, -1].tolist() == [-100] * ROWS


def test_averages_over_the_positions_that_count() -> None:
    pred = predicted("tokens")
    targets = torch.full((ROWS, 4), -100)
    targets[0] = torch.tensor([1, 1, -100, 1])
    found = pred.per_row("entropy", targets)
    assert found[0].item() == pytest.approx(((pred.entropy[0, 0] + pred.entropy[0, 2]) / 2).item(), rel=1e-6)
    assert bool(found[1:].isnan().all())
    torch.testing.assert_close(pred.per_row(pred.entropy), pred.entropy.mean(1), rtol=1e-6, atol=0)
    assert predicted("categorical").per_row("entropy").equal(predicted("categorical").entropy)
    torch.testing.assert_close(
        predicted("gaussian").per_row("std"), predicted("gaussian").std.mean(1), rtol=1e-6, atol=0
    )
    soft = predicted("categorical").counted(torch.eye(5)[[0, 1, 2, 3, 4, 0, 0]] * 0.5 + 0.1)
    assert soft.tolist() == [True] * ROWS


def test_draws_are_kept_when_asked() -> None:
    likelihood, outputs, _, _ = CASES["categorical"]
    pred = predicted("categorical", keep_draws=True)
    torch.testing.assert_close(pred.per_draw, outputs.softmax(-1), rtol=1e-5, atol=1e-7)
    assert predicted("categorical").per_draw is None
    assert pred[2:4].per_draw.shape == (DRAWS, 2, CLASSES)
    assert concat([pred[:2], pred[2:]]).per_draw.equal(pred.per_draw)
    kept = predicted("multilabel", keep_draws=True).per_draw
    torch.testing.assert_close(kept, CASES["multilabel"][1].sigmoid(), rtol=1e-5, atol=1e-7)
    means = predicted("gaussian").per_draw
    torch.testing.assert_close(means.double(), SCALING.location(CASES["gaussian"][1].double()), rtol=1e-6, atol=0)


def test_result_can_be_read_before_the_last_draw() -> None:
    outputs = CASES["multilabel"][1]
    reducer = Reducer(Multilabel(), keep_draws=True)
    for count, z in enumerate(outputs, 1):
        reducer.add(z)
        assert reducer.result().draws == count
    assert reducer.result().probs.equal(predicted("multilabel").probs)


def test_temperature_divides_logits() -> None:
    for name in CLASS_CASES:
        likelihood, outputs, own, _ = CASES[name]
        torch.testing.assert_close(predicted(name, temperature=2.0).probs, reduce(likelihood, outputs / 2, own).probs)


def test_memory_does_not_grow_with_draws() -> None:
    reducer = Reducer(Categorical())
    sizes = []
    for _ in range(3):
        reducer.add(normal(ROWS, CLASSES))
        sizes.append(sum(value.nbytes for value in vars(reducer).values() if isinstance(value, Tensor)))
    assert sizes == [ROWS * CLASSES * 8 + ROWS * 8] * 3


def test_moments_without_draws_make_the_same_predictive() -> None:
    one = predicted("categorical")
    made = CategoricalPredictive.of(Categorical(), one.log_probs, one.aleatoric, draws=0, via="propagation")
    torch.testing.assert_close(made.epistemic, one.epistemic, rtol=0, atol=1e-6)
    assert made.via == "propagation"
    assert isinstance(predicted("multilabel"), MultilabelPredictive)


# --- mixtures --------------------------------------------------------------------------------------------------------


def components(name: str) -> list:
    """One scipy distribution `[row, ...]` per draw, in original units."""
    likelihood, outputs, own, _ = CASES[name]
    found = []
    for index, z in enumerate(outputs.double()):
        if name == "poisson":
            found.append(stats.poisson(z.exp().numpy()))
            continue
        location, log_scale = likelihood.location_and_log_scale(
            z, {key: leaf[index].double() for key, leaf in own.items()}
        )
        location = likelihood.scaling.location(location)
        scale = likelihood.scaling.scale(log_scale.exp().expand(location.shape))
        location, scale = (
            value.squeeze(1).numpy() if value.shape[1] == 1 else value.numpy() for value in (location, scale)
        )
        found.append(stats.t(5, location, scale) if name == "student-t" else stats.norm(location, scale))
    return found


@pytest.mark.parametrize("name", MIXTURES)
def test_moments_add_up_in_original_units(name: str) -> None:
    parts, pred = components(name), predicted(name)
    means = np.stack([part.mean() for part in parts])
    noise = np.stack([part.var() for part in parts]).mean(0)
    wanted = {
        "mean": means.mean(0),
        "epistemic": means.std(0),
        "aleatoric": np.sqrt(noise),
        "var": means.var(0) + noise,
        "std": np.sqrt(means.var(0) + noise),
    }
    for what, value in wanted.items():
        found = getattr(pred, what)
        assert found.dtype == torch.float32
        assert found.shape == value.shape
        np.testing.assert_allclose(found.numpy(), value, rtol=2e-6)  # float32 outputs of the network
    np.testing.assert_allclose(pred.var, pred.epistemic**2 + pred.aleatoric**2, rtol=1e-6)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_cdf_is_the_mean_of_cdfs(name: str) -> None:
    parts, pred, targets = components(name), predicted(name), CASES[name][3]
    y = np.asarray(targets, dtype=float)
    np.testing.assert_allclose(pred.cdf(targets), np.mean([part.cdf(y) for part in parts], 0), atol=1e-6)
    np.testing.assert_allclose(pred.cdf(2.5), np.mean([part.cdf(2.5) for part in parts], 0), atol=1e-6)
    with pytest.raises(ShapeError):
        pred.cdf(torch.zeros(ROWS + 1))


@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "student-t"])
@pytest.mark.parametrize("q", [1e-4, 0.05, 0.5, 0.731, 0.999])
def test_quantiles_invert_the_cdf(name: str, q: float) -> None:
    pred = predicted(name)
    at = pred.quantile(q)
    # the search ends within 1e-8 of the std; float32 of 1000 +- 10 adds 3e-6 stds, times a density below 1 per std
    torch.testing.assert_close(pred.cdf(at), torch.full_like(at, q), rtol=0, atol=1e-5)
    z = pred.location[0].double() * 0 + 0.3  # the other way round, in network units
    for index, level in enumerate(pred._cdf(z).mean(0).flatten().tolist()):
        assert abs(pred._quantile(level).flatten()[index].item() - 0.3) < 1e-6


def test_quantiles_of_modes_far_apart() -> None:
    location = torch.tensor([[0.0], [0.0], [1e6]], dtype=torch.float64)
    pred = GaussianMixture(Gaussian(), 3, "draws", location, torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64))
    for q in (0.01, 0.3, 0.6, 0.7, 0.99):
        assert pred._cdf(pred._quantile(q)).mean(0).item() == pytest.approx(q, abs=1e-8)


@pytest.mark.parametrize("q", [1e-3, 0.05, 0.5, 0.95, 0.999])
def test_quantiles_of_one_component_are_exact(q: float) -> None:
    likelihoods = (Gaussian(std=2.0), stats.norm), (StudentT(df=7), lambda m, s: stats.t(7, m, s))
    for likelihood, reference in likelihoods:
        own = {"log_scale": torch.tensor([[math.log(2)]])}
        pred = reduce(likelihood, torch.tensor([[0.0, 1.0, -3.0]]), own)
        np.testing.assert_allclose(
            pred.quantile(q), reference(np.array([0.0, 1, -3]), 2.0).ppf(q), rtol=1e-6, atol=1e-6
        )


def test_quantiles_of_counts_are_the_least_that_reach() -> None:
    pred, parts = predicted("poisson"), components("poisson")
    counts = np.arange(500.0)[:, None]
    cdf = np.mean([part.cdf(counts) for part in parts], 0)
    for q in (1e-6, 0.05, 0.5, 0.95, 0.999999):
        assert pred.quantile(q).tolist() == (cdf >= q).argmax(0).tolist()
    large = reduce(Poisson(), torch.tensor([[14.0]]))
    assert large.quantile(0.9).item() == stats.poisson(math.exp(14)).ppf(0.9)


def test_a_list_of_quantiles_and_central_intervals() -> None:
    pred = predicted("gaussian")
    both = pred.quantile([0.05, 0.95])
    lower, upper = pred.interval(0.9)
    assert both.shape == (2, ROWS, OUTPUTS)
    assert lower.equal(both[0])
    assert upper.equal(both[1])
    for level in (0, 1, 90, -0.5):
        with pytest.raises(ValueError, match="percent"):
            pred.interval(level)
        with pytest.raises(ValueError, match="percent"):
            pred.quantile(float(level))


def test_a_row_of_several_outputs_multiplies_before_the_mean() -> None:
    # two draws, two outputs: 1/2 (f1 f2 + g1 g2), not the product of means
    z = torch.tensor([[[0.0, 0.0]], [[3.0, 3.0]]])
    pred = reduce(Gaussian(std=1.0), z)
    f, g = D.Normal(0.0, 1.0), D.Normal(3.0, 1.0)
    y = torch.tensor([[0.5, 2.0]])
    wanted = torch.logaddexp(f.log_prob(y).sum(), g.log_prob(y).sum()) - math.log(2)
    assert pred.log_prob(y).item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize("name", MIXTURES)
def test_crps_is_the_integral_of_the_squared_gap(name: str) -> None:
    parts, pred, targets = components(name), predicted(name), CASES[name][3]
    y = np.asarray(targets, dtype=float)
    if name == "poisson":
        grid, weights = np.arange(2000.0), np.ones(2000)
        grid, weights = (np.broadcast_to(v[:, None], (2000, ROWS)) for v in (grid, weights))
    else:
        # z = centre + std sinh(u), trapezoid on both sides of y so that the jump costs nothing
        nodes, w = np.polynomial.legendre.leggauss(400)
        std = pred.std.double().numpy()
        u = 4.5 * (nodes + 1)
        reach, jacobian = np.sinh(u), 4.5 * w * np.cosh(u)
        shape = (-1, *([1] * y.ndim))
        grid = np.concatenate([y - std * reach.reshape(shape), y + std * reach.reshape(shape)])
        weights = np.concatenate([std * jacobian.reshape(shape)] * 2)
    gap = np.mean([part.cdf(grid) for part in parts], 0) - (grid >= y)
    wanted = (weights * gap**2).sum(0)
    found = pred.crps(targets)
    assert found.shape == y.shape
    # float32 outputs; Student-t beyond sinh(9) = 4e3 stds leaves (4e3)^-9
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_crps_of_one_normal_in_closed_form() -> None:
    pred = reduce(Gaussian(std=2.0), torch.tensor([[1.0, 1.0]]))
    z = (np.array([1.0, 4.0]) - 1) / 2
    wanted = 2 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    np.testing.assert_allclose(pred.crps([1.0, 4.0]), wanted, rtol=1e-6)


@pytest.mark.parametrize("apart", [0.0, 6.0, 40.0])
@pytest.mark.parametrize("df", [3, 4, 10])
def test_student_crps_keeps_its_stated_error(df: int, apart: float) -> None:
    likelihood = StudentT(df=df)
    location = torch.tensor([[-apart], [0.0], [apart]], dtype=torch.float64)
    scale = torch.tensor([[1.0], [2.0], [1.0]], dtype=torch.float64)
    pred = StudentMixture(likelihood, 3, "draws", location, scale)
    nodes, weights = np.polynomial.legendre.leggauss(30)
    marks = [m * k for k in (1, 2, 4, 8, 30, 100, 1e3, 1e4, 1e5) for m in (-1, 1)]
    edges = np.unique([0.0, *location.flatten().tolist(), *(c + k for c in location.flatten().tolist() for k in marks)])
    wanted = 0.0
    for a, b in pairwise(edges):
        z = (a + b) / 2 + (b - a) / 2 * nodes
        cdf = np.mean([stats.t.cdf(z, df, m, s) for m, s in zip(location[:, 0].tolist(), scale[:, 0].tolist())], 0)
        wanted += (b - a) / 2 * (weights * cdf * (1 - cdf)).sum()
    assert abs(pred._dispersion().item() - wanted) < 1e-6 * pred._std.item()


def test_crps_of_many_counts_steps_over_some() -> None:
    rate = 1e8  # 160 000 integers within 8 stds: every 40th is looked at
    pred = reduce(Poisson(), torch.tensor([[math.log(rate)]], dtype=torch.float64))
    y = rate + 5000
    z = 0.5  # (y - rate) / sqrt(rate): normal to 1 / sqrt(rate) = 1e-4 of a std
    wanted = 1e4 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert pred.crps([y]).item() == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(("a", "b"), [(10.0, 1000.0), (-2.0, 5.0), (1e-6, -3e-6), (1e6, 0.0)])
@pytest.mark.parametrize("kind", [Gaussian, StudentT, Heteroscedastic])
def test_affine_equivariance(kind: type, a: float, b: float) -> None:
    """std(a y + b) = |a| std(y): the network learns the same standardised targets, up to sign."""
    y = normal(101, seed=3).double()
    first, second = kind().surveyed([y]), kind().surveyed([a * y + b])
    z, sign = normal(DRAWS, ROWS, 2), math.copysign(1, a)
    own = {"log_std": 0.1 * normal(DRAWS, 1), "log_scale": 0.1 * normal(DRAWS, 1)}
    if kind is Heteroscedastic:
        one, other = reduce(first, z), reduce(second, z * torch.tensor([sign, 1.0]))
    else:
        one, other = reduce(first, z[..., 0], own), reduce(second, sign * z[..., 0], own)
    for what in ("std", "epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(other, what), abs(a) * getattr(one, what), rtol=1e-6, atol=0)
    # float32 of the mean itself: 6e-8 of |a mean| + |b|
    torch.testing.assert_close(other.mean, a * one.mean + b, rtol=3e-7, atol=3e-7 * (abs(a) + abs(b)))
    lower, upper = one.interval(0.8)
    ends = sorted((a * lower + b, a * upper + b), key=lambda end: float(end[0]))
    for found, wanted in zip(other.interval(0.8), ends):
        torch.testing.assert_close(found, wanted, rtol=3e-7, atol=1e-6 * (abs(a) + abs(b)))
    at = one.mean.double() + 0.3
    torch.testing.assert_close(other.log_prob(a * at + b), one.log_prob(at) - math.log(abs(a)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other.crps(a * at + b), abs(a) * one.crps(at), rtol=1e-5, atol=0)


def test_metrics_survive_an_offset_that_float32_does_not() -> None:
    y = 1e9 + normal(101, seed=3).double()
    likelihood = Gaussian().surveyed([y])
    pred = reduce(likelihood, torch.zeros(1, 101), {"log_std": torch.zeros(1, 1)})
    wanted = stats.norm(y.mean(), y.std(correction=0)).logpdf(y)
    np.testing.assert_allclose(pred.log_prob(y), wanted, rtol=1e-5)
    assert pred.std[0].item() == pytest.approx(y.std(correction=0).item(), rel=1e-6)


@pytest.mark.parametrize("outputs", [torch.zeros(2, 3), torch.zeros(2, 3, 1)])
def test_one_output_is_one_axis(outputs: Tensor) -> None:
    pred = reduce(Gaussian(std=1.0), outputs)
    assert pred.mean.shape == pred.std.shape == pred.quantile(0.3).shape == (3,)
    for y in (torch.zeros(3), torch.zeros(3, 1), [0.0, 0.0, 0.0]):
        assert pred.log_prob(y).tolist() == pytest.approx([-0.5 * math.log(2 * math.pi)] * 3)
        assert pred.crps(y).shape == pred.cdf(y).shape == (3,)
    for wrong in (torch.zeros(1, 3), torch.zeros(3, 3), torch.zeros(2), torch.zeros(1)):
        with pytest.raises(ShapeError):
            pred.log_prob(wrong)
        with pytest.raises(ShapeError):
            pred.crps(wrong)
    with pytest.raises(DataError, match="rows 1"):
        pred.log_prob([0.0, math.nan, 0.0])


def test_temperature_stretches_scales_by_its_root() -> None:
    for name in ("gaussian", "student-t", "heteroscedastic"):
        warm, plain = predicted(name, temperature=4.0), predicted(name)
        torch.testing.assert_close(warm.aleatoric, 2 * plain.aleatoric, rtol=1e-6, atol=0)
        assert warm.epistemic.equal(plain.epistemic)
    # for a normal density it is p^(1/T), normalised
    warm = reduce(Gaussian(std=1.0), torch.zeros(1, 3), temperature=4.0)
    y = torch.tensor([0.0, 1.0, 3.0])
    gap = warm.log_prob(y) - D.Normal(0.0, 1.0).log_prob(y) / 4
    torch.testing.assert_close(gap, gap[:1].expand(3), rtol=1e-5, atol=1e-6)


def test_a_spread_inside_components_is_epistemic() -> None:
    scale, spread = torch.tensor([[3.0]]), torch.tensor([[16.0]])
    pred = GaussianMixture(Gaussian(), 0, "propagation", torch.tensor([[1.0]]), scale, spread)
    assert (pred.epistemic.item(), pred.aleatoric.item(), pred.std.item()) == (4.0, 3.0, 5.0)
    assert pred.log_prob([2.0]).item() == pytest.approx(D.Normal(1.0, 5.0).log_prob(torch.tensor(2.0)).item(), rel=1e-6)
    assert pred.quantile(0.9).item() == pytest.approx(stats.norm(1, 5).ppf(0.9), rel=1e-6)
    assert concat([pred, pred[0]]).spread.tolist() == [[16.0, 16.0]]


def test_blocks_of_rows_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood, outputs, own, targets = CASES["gaussian"]
    whole = predicted("gaussian")
    wanted = [whole.crps(targets), whole.quantile(0.2), whole.log_prob(targets), whole.cdf(targets)]
    monkeypatch.setattr("posterity.prediction.mixture._BLOCK", 2 * DRAWS * OUTPUTS)  # two rows at a time
    again = predicted("gaussian")
    assert len(list(again._parts())) == 4
    for one, other in zip(
        wanted, [again.crps(targets), again.quantile(0.2), again.log_prob(targets), again.cdf(targets)]
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "likelihood", [Gaussian(std=1.0), StudentT(), Poisson()], ids=lambda likelihood: likelihood.name
)
def test_an_infinite_draw_is_seen_and_ends(likelihood: Likelihood) -> None:
    own = {"log_scale": torch.zeros(2, 1)}
    pred = reduce(likelihood, torch.tensor([[0.0, 0.0], [0.0, torch.inf]]), own)
    assert pred.mean[1].isinf()
    for values in (pred.quantile(0.9), pred.crps([1.0, 1.0])):
        assert bool(values[0].isfinite())
        assert not bool(values[1].isfinite())


def test_kinds_of_mixtures() -> None:
    kinds = [type(predicted(name)) for name in MIXTURES]
    assert kinds == [GaussianMixture, GaussianMixture, StudentMixture, PoissonMixture]
