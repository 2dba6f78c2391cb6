"""Every algorithm against every promise. A new algorithm is one row of CASES."""

from typing import Any

import pytest
from tests.contract.toy import SGLD
from torch import nn

import posterity as po
from posterity.testing import CHECKS, Case

# Each tolerance holds the largest of some twenty compared numbers; what is random averages out over 50 copies.
# Means: one run's follow noisy draws of the weights and are off by 1/sqrt(200) = 7 % of a std (a cosine weighs the last
# quarter of 800 steps most), 50 copies' by 1 %. Stds and correlations: 1 % and 1.4 % by drawing. All at most 4 times.
VARIATIONAL: dict[str, Any] = {"steps": 800, "spread": "diagonal", "tolerance": 0.06}
# No noise: what is left is how far Adam comes in 400 steps along the narrow valley of a correlation of 0.9.
MODE: dict[str, Any] = {"steps": 400, "spread": "point", "tolerance": 0.01}
# The mode as above; its covariance is exact, so that only the drawing is left.
LAPLACE: dict[str, Any] = {
    "steps": 400,
    "tolerance": 0.06,
    "skip": {"correlated_density": "LastLayerLaplace needs a network: a bare density has no last layer"},
}
# Chains that remember 1 / (h P) = 100 of their 650 steps: 50 copies are 50 * 650 / 200 = 160 independent draws, whose mean
# is off by 8 % of a std. The bias of the step, 1 / (1 - h P / 2) in variances where P is 25: 11 % in stds.
LANGEVIN: dict[str, Any] = {"steps": 800, "tolerance": 0.16}

# Chains that remember some 60 of their 1000 steps: 50 copies are 50 * 1000 / 60 = 800 independent draws, whose mean is off
# by 4 % of a std.
HAMILTON: dict[str, Any] = {"steps": 400, "tolerance": 0.16}

# Its residual does not vanish on a correlated target, so that its noise has to be averaged for longer: off by 0.05.
SCORE: dict[str, Any] = {"steps": 1500, "spread": "diagonal", "tolerance": 0.08}
# One normal over all weights is exact: what is left is how far 800 steps come, and the drawing, as above.
JOINT: dict[str, Any] = {"steps": 800, "tolerance": 0.06}

# At the mode as above, and what would spread the draws is not there: the noise of batches (SWAG), or a dropout.
STILL = MODE

FAST = po.Cosine(0.2)
LONG: dict[str, Any] = {
    "noise_correction": False, "members": 1, "warmup": 300, "draws_per_chain": 200, "thin": 5, "friction": 0.1,
}  # fmt: skip
# 12 steps: an epoch of 23 rows in twos
SHORT: dict[str, Any] = {"members": 1, "warmup": 4, "draws_per_chain": 4, "thin": 2, "frozen_statistics": True}
WHITENED: dict[str, Any] = {
    "update": "whitened", "learning_rate": po.Cosine(0.1), "std_learning_rate": po.Cosine(0.1), "init_std": 0.3,
}  # fmt: skip
ADAM: dict[str, Any] = {"learning_rate": po.Cosine(0.1), "std_learning_rate": po.Cosine(0.1), "init_std": 0.1}
KNOWN = ("correlated_density", "conjugate_regression")
FLOW = dict.fromkeys(
    KNOWN, "its 250 weights are too many for a flow; tests/inference/test_score_flow.py has smaller ones"
)
RANK_ONE = "all copies of the target share the scales of one matrix; tests/inference/test_rank_one.py has its own truth"
MASKED = "a draw has masks, which torch alone cannot be given; tests/inference/test_mc_dropout.py looks at its weights"
CASES = {
    "map": Case(po.MAP(), po.MAP(learning_rate=FAST), **MODE),
    "deep-ensemble": Case(po.DeepEnsemble(3), po.DeepEnsemble(2, learning_rate=FAST), **MODE),
    "mean-field": Case(
        po.MeanFieldVI(),
        po.MeanFieldVI(learning_rate=po.Cosine(0.1), std_learning_rate=po.Cosine(0.1), init_std=0.1),
        **VARIATIONAL,
    ),
    "mean-field-ensemble": Case(
        po.Ensemble(po.MeanFieldVI(), 2),
        po.Ensemble(po.MeanFieldVI(learning_rate=po.Cosine(0.1), std_learning_rate=po.Cosine(0.1), init_std=0.1), 2),
        **VARIATIONAL,
    ),
    "ivon": Case(po.IVON(), po.IVON(learning_rate=po.Cosine(0.1), init_hessian=1.0, beta2=0.99), **VARIATIONAL),
    "score-vi": Case(po.ScoreVI(init_std=0.1), po.ScoreVI(**WHITENED), **SCORE),
    "score-vi-ensemble": Case(
        po.Ensemble(po.ScoreVI(update="whitened", init_std=0.1), 2), po.Ensemble(po.ScoreVI(**WHITENED), 2), **SCORE
    ),
    "score-vi-lag": Case(
        po.ScoreVI(lag=3, inner_steps=2, init_std=0.1), po.ScoreVI(lag=3, inner_steps=2, **WHITENED), **SCORE
    ),
    "score-vi-dense": Case(
        po.ScoreVI("dense"), po.ScoreVI("dense", init_std=0.5, learning_rate=po.Cosine(0.15)), **JOINT
    ),
    "score-vi-low-rank": Case(
        po.ScoreVI("low-rank-plus-diagonal"),
        po.ScoreVI(
            "low-rank-plus-diagonal",
            rank=150,
            update="whitened",
            init_std=0.5,
            learning_rate=po.Cosine(0.15),
            spread_learning_rate=po.Cosine(0.15),
        ),
        **JOINT,
    ),
    "score-vi-mixture": Case(
        po.ScoreVI("mixture", components=3, draws=6, learning_rate=po.Cosine(0.02)),
        po.ScoreVI("mixture", components=1, draws=8, init_std=0.5, temper=0.0, learning_rate=po.Cosine(0.1)),
        **VARIATIONAL,
    ),
    "score-vi-flow": Case(po.ScoreVI("flow", flow="realnvp", hidden=(5,), draws=4, inner_steps=2), skip=FLOW),
    "score-vi-flow-last-layer": Case(
        po.ScoreVI("flow", flow="realnvp", transforms=1, hidden=(5,), draws=3, over="last-layer"), skip=FLOW
    ),
    "score-vi-flow-subspace": Case(
        po.ScoreVI("flow", transforms=1, hidden=(5,), bins=3, draws=3, over="subspace", subspace_dim=3), skip=FLOW
    ),
    "advi": Case(po.ADVI(init_std=0.1), po.ADVI(draws=2, **ADAM), **SCORE),
    "advi-full": Case(
        po.ADVI("full"),
        po.ADVI("full", learning_rate=po.Cosine(0.05), factor_learning_rate=po.Cosine(0.01), init_std=0.3),
        steps=2000,
        tolerance=0.1,
    ),
    "bam": Case(po.BaM(draws=3), po.BaM(draws=400, init_std=0.5), steps=10, tolerance=0.06),
    "gsm": Case(po.GSM(), skip=dict.fromkeys(KNOWN, "its 250 weights take GSM some ten thousand steps")),
    "fisher-vi": Case(
        po.FisherVI(init_std=0.1), skip=dict.fromkeys(KNOWN, "its fixed point is another, 1 / sqrt((P^2)_ii)")
    ),
    "laplace-full": Case(po.LastLayerLaplace(), po.LastLayerLaplace(base=po.MAP(learning_rate=FAST)), **LAPLACE),
    "laplace-kronecker": Case(
        po.LastLayerLaplace(structure="kronecker"),
        po.LastLayerLaplace(structure="kronecker", base=po.MAP(learning_rate=FAST)),
        **LAPLACE,
    ),
    "sghmc": Case(
        po.SGHMC(**SHORT),
        po.SGHMC(mass="identity", **LONG),
        **HAMILTON,
    ),
    "sghmc-euler-adaptive": Case(
        po.SGHMC(mass="adaptive", integrator="euler", **SHORT),
        po.SGHMC(mass="adaptive", integrator="euler", step_size=0.1, **LONG),
        **HAMILTON,
    ),
    "sgld": Case(
        po.SGLD(mass=po.Mass("gradient", layer_wise=True), **SHORT),
        po.SGLD(
            mass="identity",
            noise_correction=False,
            members=1,
            warmup=150,
            draws_per_chain=650,
            thin=1,
            step_size=0.015,
            ensemble=po.MAP(learning_rate=FAST),
        ),
        **LANGEVIN,
    ),
    "optimizer-laplace": Case(
        po.OptimizerLaplace(),
        skip={
            **dict.fromkeys(KNOWN, "its std is the optimizer's: the noise of batches, not curvature"),
            "same_rows_same_posterior": "B nu is the Fisher information of rows at random: it feels how they are dealt",
        },
    ),
    "low-rank": Case(
        po.LowRankVI({"*[0y].weight": 1}),
        po.LowRankVI(
            {"*": "normal"},
            vectors="normal",
            learning_rate=po.Cosine(0.1),
            std_learning_rate=po.Cosine(0.1),
            kl_ramp=0.0,
        ),
        skip={"frozen_unused_tied": "its prior is centred on given weights, which have no factors; see the row below"},
        **VARIATIONAL,
    ),
    "low-rank-ensemble": Case(
        po.Ensemble(po.LowRankVI({"*": 1}, noise="antithetic", change=True), 2),
        skip={
            **dict.fromkeys(KNOWN, "as of one member"),
            "non_finite_steps_are_skipped": "no rank pays for its 1 x 4 layer, which is said; see the row above",
        },
    ),
    "swag": Case(
        po.SWAG(collections=3, every=2, rank=2),
        po.SWAG(base=po.MAP(learning_rate=FAST), collections=20, every=1),
        **STILL,
    ),
    "rank-one": Case(po.RankOneVI(), skip=dict.fromkeys(KNOWN, RANK_ONE)),
    "rank-one-ensemble": Case(po.Ensemble(po.RankOneVI(), 2), skip=dict.fromkeys(KNOWN, RANK_ONE)),
    "mc-dropout": Case(
        po.MCDropout(),
        po.MCDropout(learning_rate=FAST),
        network=lambda network: nn.Sequential(network, nn.Dropout(0.2)),
        skip={
            "members_keep_their_statistics": MASKED,
            "frozen_unused_tied": MASKED,
            "same_rows_same_posterior": "a row's mask in training is another one where the row comes in another batch",
        },
        **STILL,
    ),
    "toy-sgld": Case(SGLD(), SGLD(step_size=0.015, burn_in=150), **LANGEVIN),
}


SLOW = {(case, check) for case in ("advi-full", "sghmc-euler-adaptive", "score-vi-low-rank") for check in KNOWN}
SLOW |= {("score-vi-mixture", "conjugate_regression")}
# Members are checked in the fast rows of the deep ensemble and of mean-field.
SLOW |= {(f"{case}-ensemble", check) for case in ("score-vi", "swag", "rank-one", "low-rank") for check in CHECKS}


@pytest.mark.filterwarnings("ignore:the chains run without the dropout")
@pytest.mark.parametrize(
    ("case", "check"),
    [
        pytest.param(case, check, marks=[pytest.mark.slow] if (case, check) in SLOW else [])
        for case in CASES
        for check in CHECKS
    ],
)
def test_contract(case: str, check: str) -> None:
    if check in CASES[case].skip:
        pytest.skip(CASES[case].skip[check])
    CHECKS[check](CASES[case])
