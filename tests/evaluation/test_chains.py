"""The diagnosis of a model's chains, its findings, its report, and what arviz reads of it."""

import json
import math
import re
import warnings

import pytest
import torch
from tests.evaluation import chains as fake

import posterity as po
from posterity.errors import CompatibilityError, DataError
from posterity.evaluation.chain_findings import chain_findings
from posterity.evaluation.chains import between_rhat, chain_diagnostics, split_rhat
from posterity.evaluation.diagnosis import diagnose
from posterity.posterior.chains import Chains
from posterity.posterior.draws import Draws

TRAIN, TEST = fake.regression(101), fake.regression(67, 1)


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0.x announces 1.x when it is loaded
        return pytest.importorskip("arviz", reason="arviz is not installed")


# --- a model's chains ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return fake.model(TRAIN, rho=0.3)


@pytest.fixture(scope="module")
def found(model):
    return chain_diagnostics(model, TEST, points=13)


def test_lppd_of_all_and_of_single_chains(model, found):
    """All chains: as `evaluate`. One chain: as a model of its draws alone. To float32's digits."""
    whole = po.evaluate(model, TEST).rows[0]["metrics"]["lppd"].value
    assert found.lppd.value == pytest.approx(whole, abs=1e-6)
    assert found.lppd.n == 67
    for k in range(4):
        posterior = model.posterior
        single = Chains(posterior.source, posterior.every, posterior.names[k : k + 1], posterior.about)
        one = po.BayesianModel(model.problem, single, settings=model.settings)
        assert found.table["lppd"][k] == pytest.approx(
            po.evaluate(one, TEST).rows[0]["metrics"]["lppd"].value, abs=1e-6
        )
    assert found.gain.value == pytest.approx(found.lppd.value - sum(found.table["lppd"]) / 4, abs=1e-9)
    assert found.gain.low < found.gain.value < found.gain.high
    assert found.gain.low > 0, "the centres of these chains are 0.3 apart in every weight"


def test_the_table_goes_by_member(found):
    assert found.table["member"] == [0, 1, 2, 4]
    assert found.table["kinetic_temperature"] == pytest.approx([1.0, 1.01, 1.02, 1.04])
    assert found.table["step_size"] == pytest.approx([1e-3, 1.1e-3, 1.2e-3, 1.4e-3])
    assert found.table["draws"] == [40] * 4
    assert math.isnan(found.table["noise_limit"][0])
    assert "noise_limit" in found.reasons
    worth = torch.tensor(found.table["ess"]) * 1000 / (40 * 20)
    torch.testing.assert_close(torch.tensor(found.table["ess_per_1000_gradients"]), worth)
    assert len({len(column) for column in found.table.values()}) == 1
    assert (found.members, dict(found.lost)) == (5, {"3": "its gradient was not finite at step 400"})


def test_functionals_are_the_means_at_spaced_points(model, found):
    assert found.outputs.points[0] == 0
    assert found.outputs.points[-1] == 66
    means = found.outputs.outputs["mean"]
    assert means.shape == (4, 40, 13)
    weights = {
        name: leaf.view(40, 5, *leaf.shape[1:])[:, [0, 1, 2, 4]]
        for name, leaf in model.posterior.source.stacked.items()
    }
    x = TEST[0][found.outputs.points]
    want = x @ weights["weight"].view(40, 4, 3, 1) + weights["bias"].view(40, 4, 1, 1)
    torch.testing.assert_close(means, want[..., 0].transpose(0, 1), atol=1e-5, rtol=1e-5)
    rhat = split_rhat(means.movedim(-1, 0))
    assert found.table["rhat_median"] == pytest.approx(rhat.median(0).values.tolist())  # 13 is odd
    assert found.table["rhat_share"] == pytest.approx((rhat < 1.1).double().mean(0).tolist())
    torch.testing.assert_close(found.outputs.outputs["log_std"], torch.full((4, 40, 13), math.log(0.3)))


def test_a_rows_limit_takes_the_first(model):
    some = chain_diagnostics(model, TEST, points=5, rows=29)
    whole = chain_diagnostics(model, (TEST[0][:29], TEST[1][:29]), points=5)
    assert some.to_json() == whole.to_json()
    assert some.lppd.n == 29


def test_slow_chains_do_not_look_settled(found):
    slow = chain_diagnostics(fake.model(TRAIN, rho=0.97), TEST, points=13)
    assert max(slow.table["rhat_share"]) < min(found.table["rhat_share"])
    assert max(slow.table["ess"]) < min(found.table["ess"])
    assert found.between_rhat > 2 > found.weight_rhat


def test_class_probabilities():
    model = fake.model(fake.classes(101), po.Categorical(classes=(0, 1, 2)), outputs=3)
    x, y = fake.classes(67, 1)
    found = chain_diagnostics(model, (x, y), points=7)
    probs = found.outputs.outputs["probs"]
    assert probs.shape == (4, 40, 7, 3)
    torch.testing.assert_close(probs.sum(-1), torch.ones(4, 40, 7))
    at = y[found.outputs.points]
    want = probs[..., torch.arange(7), at].log()
    torch.testing.assert_close(found.outputs.log_prob, want, atol=1e-5, rtol=1e-5)
    assert found.functional == "class probabilities at 7 points"
    ignored = y.clone()
    ignored[::2] = -100
    some = chain_diagnostics(model, (x, ignored), points=7)
    assert some.lppd.n == 33
    assert all(row % 2 for row in some.outputs.points)
    with pytest.raises(DataError, match="label"):
        chain_diagnostics(model, (x, torch.full_like(y, -100)))


def test_many_classes_are_judged_by_the_log_p_of_the_label():
    x, y = fake.classes(67, 1)
    model = fake.model((x, y), po.Categorical(classes=tuple(range(23))), outputs=23)
    found = chain_diagnostics(model, (x, y), points=7)
    assert list(found.outputs.outputs) == ["log_prob"]
    assert found.functional == "log p of labels at 7 points"


def test_too_few_draws_and_one_chain_are_said():
    few = chain_diagnostics(fake.model(TRAIN, per_chain=7), TEST)
    assert all(math.isnan(value) for name in ("rhat_median", "rhat_share", "ess") for value in few.table[name])
    assert "7 draws" in few.reasons["rhat, ess"]
    assert few.gain.value > 0
    assert next(each for each in chain_findings(few) if each.check == "R-hat within chains").status == "skipped"
    one = chain_diagnostics(fake.model(TRAIN, names=(2,)), TEST)
    assert math.isnan(one.gain.value)
    assert "one chain" in one.gain.reason
    assert math.isnan(one.between_rhat)
    assert "between_rhat" in one.reasons


def test_other_posteriors_have_no_chains(model):
    members = Draws({name: leaf[:5] for name, leaf in model.posterior.source.stacked.items()})
    plain = po.BayesianModel(model.problem, members, settings={"method": "deep-ensemble"})
    with pytest.raises(CompatibilityError, match="deep-ensemble.*SGHMC"):
        chain_diagnostics(plain, TEST)
    with pytest.raises(DataError, match="points=0"):
        chain_diagnostics(model, TEST, points=0)
    part = Draws({name: leaf[::5] for name, leaf in model.posterior.source.stacked.items()})  # chain 0
    plain = po.BayesianModel(model.problem, part, settings=model.settings)
    assert "chains" not in po.evaluate(plain, TEST).rows[0]["details"]


def test_json_and_frame(found):
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["chains"]["noise_limit"] == [None] * 4
    assert record["gain"]["n"] == 67
    frame = found.to_frame()
    assert list(frame["member"]) == [0, 1, 2, 4]


# --- arviz --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["installed", "1.0.0"])
def test_to_arviz(arviz, found, version, monkeypatch):
    """A tree for 1.x, which is made by xarray alone; the groups are the same."""
    if version != "installed":
        monkeypatch.setattr(arviz, "__version__", version)
    data = found.to_arviz()
    kind = "DataTree" if int(arviz.__version__.split(".")[0]) >= 1 else "InferenceData"
    assert type(data).__name__ == kind
    mean = data["posterior"]["mean"]
    assert mean.dims == ("chain", "draw", "point")
    assert mean.coords["chain"].values.tolist() == [0, 1, 2, 4]
    assert data["log_likelihood"]["y"].shape == (4, 40, 13)
    assert list(data["sample_stats"]) == ["step_size"], "the trace holds 21 of the draws only"


def test_arviz_reads_it(arviz, found):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rhat = arviz.rhat(found.to_arviz(), method="split")["mean"].values
    torch.testing.assert_close(torch.tensor(rhat), between_rhat(found.outputs.outputs["mean"].movedim(-1, 0)))


def test_a_trace_that_holds_every_draw_goes_along(arviz):
    model = fake.model(TRAIN, told=fake.about(lost=(), warmup=20))  # draws at 40, ..., 820: the trace ends at 800
    assert list(chain_diagnostics(model, TEST).to_arviz()["sample_stats"]) == ["step_size"]
    told = fake.about(lost=(), warmup=0)
    stats = chain_diagnostics(fake.model(TRAIN, told=told), TEST).to_arviz()["sample_stats"]
    assert stats["nll"].shape == (4, 40)
    assert stats["nll"].values[3, 6] == told["trace"]["nll"][7][4]  # member 4, the seventh draw, step 140


# --- findings and the report --------------------------------------------------------------------------------------------


def _status(told, **more):
    model = fake.model(TRAIN, told=told, **more)
    return {each.check: each for each in chain_findings(chain_diagnostics(model, TEST, points=13))}


def test_sound_chains_are_left_alone():
    findings = _status(fake.about(lost=()), per_chain=120)
    assert {each.status for each in findings.values()} == {"ok"}
    assert not any(each.remedy for each in findings.values())


@pytest.mark.parametrize(
    ("told", "check", "words"),
    [
        ({"kinetic_temperature": [1, 1.2, 1, 1, 1]}, "kinetic temperature", r"chain 1 \(1.20\) too hot"),
        (
            {"kinetic_temperature": [1, 1, 0.8, 1, 0.7]},
            "kinetic temperature",
            r"chains 2 \(0.80\), 4 \(0.70\) too cold",
        ),
        ({"temperature": 0.5}, "kinetic temperature", "0.5 was asked for"),
        ({"noise_ratio": {"0.5": 0.9, "clamped": 0.25}}, "noise correction", "25.0% of the weights"),
        ({"lost": {"3": "it wandered off"}}, "lost chains", r"chain 3: it wandered off"),
    ],
)
def test_what_is_wrong_is_named(told, check, words):
    finding = _status(fake.about(lost=()) | told)[check]
    assert finding.status == "warning"
    assert finding.remedy
    assert re.search(words, finding.message), finding.message


def test_drifting_chains_and_many_lost_ones():
    assert _status(fake.about(lost=()), rho=0.99)["R-hat within chains"].status == "warning"
    assert _status(fake.about(lost=(0, 2, 3)), names=(1, 4))["lost chains"].status == "fault"


def test_what_was_not_recorded_is_skipped():
    bare = fake.about(lost=(), noise_ratio=None, kinetic_temperature=None, trace=None, thin=None)
    findings = _status(bare)
    assert {findings[check].status for check in ("kinetic temperature", "noise correction")} == {"skipped"}


def test_the_doctor_looks_at_chains(model):
    assert {each.check for each in diagnose(model, TEST)} >= {"lost chains", "R-hat within chains", "training"}


@pytest.fixture(scope="module")
def evaluation(model):
    return po.evaluate(model, TEST)


def test_details_of_an_evaluation(evaluation, model):
    details = evaluation.to_json()["rows"][0]["details"]
    assert details["chains"]["member"] == [0, 1, 2, 4]
    trace = details["trace"]
    assert len(trace["step"]) == 41 * 5
    lost = [value for value, member in zip(trace["nll"], trace["member"]) if member == 3]
    assert lost[20:] == [None] * 21
    assert None not in lost[:20]
    numbers = dict(zip(details["chain_numbers"]["name"], details["chain_numbers"]["value"]))
    assert numbers["lppd"] == pytest.approx(evaluation.rows[0]["metrics"]["lppd"].value, abs=1e-6)
    assert numbers["warmup"] == 400
    assert po.Evaluation.from_json(evaluation.to_json()).rows[0]["details"]["chains"] == details["chains"]
    both = po.compare({"a": model, "b": [model, model]}, TEST)
    assert ["chains" in row.get("details", {}) for row in both.rows] == [True, True, False]


def page(evaluation, path):
    """The report of nothing but the chains."""
    pytest.importorskip("vl_convert")
    names = ("chains", "trace", "chain_numbers", "chain_findings")
    rows = [
        {**row, "details": {name: row["details"][name] for name in names if name in row["details"]}}
        for row in evaluation.rows
    ]
    return po.Evaluation(rows).report(path / "page.html").read_text(encoding="utf-8")


def test_the_report_shows_chains(evaluation, tmp_path):
    text = page(evaluation, tmp_path)
    assert '<section id="chains">' in text
    for words in ("figure-chains-nll", "figure-chains-kinetic", "chain 3, lost", "4 of 5 chains kept", "Try a smaller"):
        assert words in text
    plain = po.Evaluation([{**row, "details": {}} for row in evaluation.rows])
    assert '<section id="chains">' not in plain.report(tmp_path / "plain.html").read_text(encoding="utf-8")


def test_more_chains_than_colours_and_no_trace(tmp_path):
    names = tuple(k for k in range(11) if k != 3)
    evaluation = po.evaluate(fake.model(TRAIN, names=names, per_chain=8, told=fake.about(members=11)), TEST)
    assert "10 of 11 chains kept; lost: 3" in page(evaluation, tmp_path)
    bare = po.evaluate(fake.model(TRAIN, told=fake.about(trace=None)), TEST)
    text = page(bare, tmp_path)
    assert '<section id="chains">' in text
    assert "figure-chains-nll" not in text
