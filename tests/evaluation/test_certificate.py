"""Certificates: the number is what its formula says, and whatever would make it untrue is refused."""

import dataclasses
import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.evaluation import gibbs as gibbs_module
from posterity.evaluation.bounds import mcallester, sampling_bound, seeger
from posterity.posterior.diagonal import Diagonal

N = 1511
FAST = {"epochs": 1, "progress": False}


def data(rows=N, seed=0):
    """Two classes of a line in four dimensions; about 6 % of the rows lie on the wrong side of it."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=random)
    return x, (2 * x[:, 0] - x[:, 1] + 0.5 * torch.randn(rows, generator=random) > 0).long()


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def mean_field(**options):
    fast = po.Cosine(3e-2)
    return po.MeanFieldVI(learning_rate=fast, std_learning_rate=fast, init_std=0.1, **options)


@pytest.fixture(scope="module")
def model():
    return po.fit(
        network,
        data(),
        "categorical",
        mean_field(),
        po.Normal(1.0, fan_in=True),
        epochs=25,
        batch_size=128,
        progress=False,
    )


@pytest.fixture(scope="module")
def small():
    """A fit to 53 rows, for what is refused."""
    return po.fit(network, data(53), "categorical", mean_field(), **FAST)


def gibbs(model, x, y, draws, seed=5):
    wrong = [
        (model.problem.outputs(theta, x).argmax(-1) != y).double().mean().item()
        for theta in model.posterior.draws(draws, po.Random(seed))
    ]
    return sum(wrong) / draws


def test_the_bound_is_what_its_formula_says_and_holds_on_fresh_rows(model):
    found = po.certify(model, data(), draws=150)
    x, y = data()
    address = po.Random(model.settings["seed"]).fold("certificate").fold("draw")
    draws = list(model.posterior.draws(150, address))
    wrong = sum(int((model.problem.outputs(theta, x).argmax(-1) != y).sum()) for theta in draws)
    assert found.gibbs_error == pytest.approx(wrong / (150 * N), abs=1e-12)
    assert found.kl == model.posterior.divergence(model.problem.prior)
    error = sampling_bound(found.gibbs_error, 150, 0.025)
    assert found.gibbs_bound == error
    assert found.bound == seeger(error, found.kl, N, 0.025)
    assert found.mcallester == mcallester(error, found.kl, N, 0.025)
    assert found.limit == seeger(found.gibbs_error, found.kl, N, 0.025)
    assert found.gibbs_error < found.limit < found.bound < found.mcallester
    assert gibbs(model, *data(5003, 1), 100) < found.bound
    assert found.majority_error == pytest.approx(1 - max(y.float().mean().item(), 1 - y.float().mean().item()))
    assert (found.rows, found.draws, found.weights, found.parameters) == (N, 150, 58, 116)
    assert found.center == "zero"
    assert found.verdict == "informative"


def test_more_draws_and_more_doubt_narrow_it(model):
    some, more = (po.certify(model, data(), draws=n) for n in (50, 400))
    assert more.bound < some.bound
    assert more.limit == pytest.approx(some.limit, abs=0.01)
    assert po.certify(model, data(), draws=50, delta=0.2).bound < some.bound
    other = po.certify(model, data(), draws=50, seed=3)
    assert other.gibbs_error != some.gibbs_error
    assert other.kl == some.kl


def test_labels_of_coin_tosses_are_never_certified():
    """The true error is 1/2 whatever was fitted: a bound below it would be a lie, and the fit itself tells one."""
    x, y = data(101)
    y = torch.randint(2, (101,), generator=torch.Generator().manual_seed(8))
    cold = po.fit(network, (x, y), "categorical", mean_field(), epochs=150, data_weight=200.0, progress=False)
    found = po.certify(cold, (x, y), draws=1000)
    assert found.gibbs_bound < 0.5 <= found.bound
    assert found.verdict == "vacuous"


def test_rows_may_come_in_any_form_and_order(model, monkeypatch):
    whole = po.certify(model, data(), draws=7)
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), batch_size=97, shuffle=True)
    assert po.certify(model, loader, draws=7) == whole
    assert po.certify(model, TensorDataset(x, y), draws=7, batch_size=300) == whole
    named = [{"input": x[i : i + 500], "label": y[i : i + 500]} for i in range(0, N, 500)]
    assert po.certify(model, named, draws=7, target="label") == whole
    monkeypatch.setattr(gibbs_module, "_HELD", 500 * 4 * 4)  # several blocks, each with all draws
    assert po.certify(model, loader, draws=7) == whole


def test_a_loaded_run_has_the_same_certificate(small, tmp_path):
    small.save(tmp_path)
    loaded = po.load(tmp_path, network())
    assert po.certify(loaded, data(53)) == po.certify(small, data(53))
    centred = po.fit(
        network, data(53), "categorical", mean_field(), po.Normal(0.3, center="start"), **FAST, out=tmp_path / "run"
    )
    first, again = po.certify(centred, data(53)), po.certify(po.load(tmp_path / "run", network()), data(53))
    assert first == again
    assert first.center == "start"
    assert "start=" in first.assumptions[0]
    # one epoch leaves the means near the start: centred at zero they are as far as their own size
    assert first.kl < po.certify(centred, data(53), prior=po.Normal(0.3)).kl


def test_a_prior_from_other_rows(model):
    other = po.fit(network, data(N, 7), "categorical", po.MAP(), start=model, epochs=5, progress=False)
    own, held_out = po.certify(model, data(), draws=9), po.certify(model, data(), draws=9, prior=other)
    assert held_out.center == "held-out"
    assert "none of them among these" in held_out.assumptions[0]
    assert held_out.kl < own.kl
    assert po.certify(model, data(), draws=9, prior=other.posterior.mean()) == held_out
    centred = dataclasses.replace(model.problem.prior, center=other.posterior.mean())
    given = po.certify(model, data(), draws=9, prior=centred)
    assert given.kl == held_out.kl
    assert given.center == "given"
    for wrong, said in ((model, "other rows than the model"), (po.Normal(center="start"), "where it is centred")):
        with pytest.raises(po.CompatibilityError, match=said):
            po.certify(model, data(), prior=wrong)
    with pytest.raises(po.PriorError, match="lacks the tensors"):
        po.certify(model, data(), prior={"0.weight": torch.zeros(8, 4)})
    ensemble = po.fit(network, data(53), "categorical", po.DeepEnsemble(2), **FAST)
    with pytest.raises(po.CompatibilityError, match="average of an ensemble"):
        po.certify(model, data(), prior=ensemble)


class WithIdle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 2), nn.Linear(3, 5)

    def forward(self, x):
        return self.used(x)


def test_weights_that_no_forward_reaches_cost_nothing():
    prior = po.Normal(0.7, center="start")
    fitted = po.fit(WithIdle, data(53), "categorical", mean_field(), prior, **FAST)
    assert fitted.problem.idle == {"idle.weight", "idle.bias"}
    used = {name for name in fitted.posterior.means if name not in fitted.problem.idle}
    kl = sum(float(fitted.problem.prior.kl(n, fitted.posterior.means[n], fitted.posterior.stds[n])) for n in used)
    assert po.certify(fitted, data(53)).kl == pytest.approx(kl, abs=1e-5)
    elsewhere = {name: leaf + 3.0 for name, leaf in fitted.problem.prior.centers.items()}
    moved = po.Normal(0.2, center=elsewhere)
    expected = moved.bind(fitted.problem.start())
    kl = sum(float(expected.kl(n, fitted.posterior.means[n], fitted.posterior.stds[n])) for n in used)
    assert po.certify(fitted, data(53), prior=moved).kl == pytest.approx(kl, rel=1e-6)


def test_an_ensemble_of_distributions_draws_from_all_members_alike():
    fitted = po.fit(network, data(53), "categorical", mean_field(members=3), **FAST)
    found = po.certify(fitted, data(53), draws=100)
    assert found.draws == 102
    parts = fitted.posterior.components
    assert found.kl == pytest.approx(sum(part.divergence(fitted.problem.prior) for part in parts) / 3)
    errors = [gibbs(po.BayesianModel(fitted.problem, part), *data(53), 500) for part in parts]
    # a draw's error has std below 1/2; so does the mean of 102, over sqrt(102)
    assert found.gibbs_error == pytest.approx(sum(errors) / 3, abs=4 * 0.5 / math.sqrt(102))


def wide():
    return nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2))


def test_low_rank_factors_are_certified_by_the_prior_of_their_fit(small):
    method = po.LowRankVI(rank=4, vectors="normal")
    fitted = po.fit(wide, data(211), "categorical", method, epochs=5, progress=False)
    found = po.certify(fitted, data(211))
    assert found.kl == fitted.posterior.divergence(fitted.problem.prior)
    assert found.center == "zero"
    assert found.parameters == 2 * (4 * 48 + 4 * 24 + 24 * 2 + 24 + 24 + 2)
    with pytest.raises(po.CompatibilityError, match="belongs to their fit"):
        po.certify(fitted, data(211), prior=small)
    change = dataclasses.replace(method, change=True)  # of the weights it starts at: these are where the prior is
    fitted = po.fit(wide, data(211), "categorical", change, start=fitted, epochs=5, progress=False)
    assert po.certify(fitted, data(211)).center == "start"
    points = po.fit(wide, data(53), "categorical", po.LowRankVI(rank=4), **FAST)
    with pytest.raises(po.CompatibilityError, match="are points"):
        po.certify(points, data(53))


def test_one_logit_and_labels_in_words():
    x, y = data(211)
    words = ["yes" if one else "no" for one in y.tolist()]
    fitted = po.fit(nn.Linear(4, 1), (x, words), "bernoulli", mean_field(), epochs=20, progress=False)
    found = po.certify(fitted, (x, words))
    assert 0 < found.gibbs_error < 0.3
    assert found.gibbs_error == pytest.approx(
        sum(
            ((fitted.problem.outputs(theta, x)[:, 0] > 0).long() != y).double().mean().item()
            for theta in fitted.posterior.draws(200, po.Random(0).fold("certificate").fold("draw"))
        )
        / 200
    )


def test_what_has_no_certificate_is_refused():
    x, y = data(53)
    regression = po.fit(nn.Linear(4, 1), (x, x[:, 0]), "gaussian", mean_field(), **FAST)
    with pytest.raises(po.CompatibilityError, match="gaussian likelihood has none"):
        po.certify(regression, (x, x[:, 0]))
    for method, kind in ((po.MAP(), "point"), (po.DeepEnsemble(2), "draws")):
        fitted = po.fit(network, (x, y), "categorical", method, **FAST)
        with pytest.raises(po.CompatibilityError, match=f"a {kind} posterior is a finite set of weights"):
            po.certify(fitted, (x, y))
    normed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    fitted = po.fit(normed, (x, y), "categorical", mean_field(), batch_size=32, **FAST)
    with pytest.raises(po.CompatibilityError, match=r"buffers \['1.num_batches_tracked', .* no prior covers them"):
        po.certify(fitted, (x, y))
    last = po.fit(network, (x, y), "categorical", po.LastLayerLaplace(), **FAST)
    with pytest.raises(po.CompatibilityError, match="KL"):
        po.certify(last, (x, y))
    several = po.fit(nn.Linear(4, 3), (x, torch.stack([y, 1 - y, y], 1)), "multilabel", mean_field(), **FAST)
    with pytest.raises(po.CompatibilityError, match="several per row"):
        po.certify(several, (x, torch.stack([y, 1 - y, y], 1)))


def test_a_posterior_without_spread_is_refused(small):
    stds = {name: std for name, std in small.posterior.stds.items() if name != "2.bias"}
    fixed = po.BayesianModel(small.problem, Diagonal(small.posterior.means, stds))
    with pytest.raises(po.CompatibilityError, match=r"\['2.bias'\] have no spread"):
        po.certify(fixed, data(53))


def test_other_rows_than_those_of_the_fit_are_refused(small):
    for rows in (data(51), DataLoader(TensorDataset(*data(67)), batch_size=9), [data(29)]):
        with pytest.raises(po.DataError, match=r"N = 53, and there are (51|67|29) "):
            po.certify(small, rows)
    x, y = data(53)
    with pytest.raises(po.DataError, match=r"1 row \(27\) of the data"):
        po.certify(small, (x, y.index_fill(0, torch.tensor([27]), -100)), batch_size=20)
    with pytest.raises(po.CompatibilityError, match="soft labels"):
        po.certify(small, (x, torch.full((53, 2), 0.5)))
    for options in ({"delta": 0.0}, {"delta": 1.0}, {"delta": math.nan}, {"draws": 0}):
        with pytest.raises(po.DataError, match=r"probability between|at least one draw"):
            po.certify(small, (x, y), **options)


def test_a_certificate_is_json_and_text(small):
    found = po.certify(small, data(53), draws=11)
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["verdict"] == found.verdict
    assert record["limit"] == found.limit
    own = {
        name: tuple(v) if isinstance(v, list) else v for name, v in record.items() if name not in ("verdict", "limit")
    }
    assert po.Certificate(**own) == found
    text = str(found)
    for said in (found.verdict, f"{found.bound:.4f}", "53 rows", "11 draws", "assumed: the rows are independent"):
        assert said in text
    assert "but:" not in text
    assert "but: one" in str(dataclasses.replace(found, reservations=("one",)))


@pytest.mark.parametrize(
    ("bound", "mcallester", "verdict"),
    [
        (0.2, 0.25, "informative"),
        (0.3, 0.31, "worse than guessing the majority"),
        (0.9, 0.99, "worse than guessing the majority"),
        (0.9, 1.0, "vacuous"),
    ],
)
def test_verdicts(bound, mcallester, verdict):
    found = po.Certificate(bound, mcallester, 0.1, 0.15, 10.0, 100, 200, 0.05, 5, 10, 0.3, "zero")
    assert found.verdict == verdict
