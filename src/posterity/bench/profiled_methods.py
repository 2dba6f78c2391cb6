"""The algorithms whose steps are profiled: all that there are, as they come."""

from __future__ import annotations

from collections.abc import Mapping

from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm
from posterity.inference.bam import BaM
from posterity.inference.ensemble import DeepEnsemble
from posterity.inference.fisher import FisherVI
from posterity.inference.gsm import GSM
from posterity.inference.ivon import IVON
from posterity.inference.laplace import LastLayerLaplace
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mc_dropout import MCDropout
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.optimizer_laplace import OptimizerLaplace
from posterity.inference.rank_one import RankOneVI
from posterity.inference.score import ScoreVI
from posterity.inference.sghmc import SGHMC
from posterity.inference.sgld import SGLD
from posterity.inference.swag import SWAG

__all__ = ["LARGE", "SMALL_ONLY"]

LARGE: Mapping[str, Algorithm] = {
    "map": MAP(),
    "deep-ensemble": DeepEnsemble(5),
    "mean-field": MeanFieldVI(),
    "ivon": IVON(),
    "score-vi": ScoreVI(),
    "score-vi-whitened": ScoreVI(update="whitened"),
    "score-vi-lagged": ScoreVI(lag=5),
    "score-vi-low-rank": ScoreVI("low-rank-plus-diagonal"),
    "advi": ADVI(),
    "fisher-vi": FisherVI(),
    "low-rank": LowRankVI(),
    "rank-one": RankOneVI(),
    "mc-dropout": MCDropout(),
    "swag": SWAG(),
    "optimizer-laplace": OptimizerLaplace(),
    "laplace-kronecker": LastLayerLaplace(structure="kronecker"),
    "sghmc": SGHMC(members=1, step_size=1e-6, check_stability=False),
    "sgld": SGLD(members=1, step_size=1e-6, check_stability=False),
}

# one covariance of all weights, or many draws of them at once: for small networks
SMALL_ONLY: Mapping[str, Algorithm] = {
    "laplace": LastLayerLaplace(),
    "score-vi-dense": ScoreVI("dense"),
    "advi-full": ADVI("full"),
    "bam": BaM(),
    "gsm": GSM(),
    "score-vi-mixture": ScoreVI("mixture"),
    "score-vi-flow": ScoreVI("flow", over="subspace"),
}
