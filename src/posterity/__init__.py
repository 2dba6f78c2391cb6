"""posterity: any PyTorch network, made to say how sure it is.

>>> import torch, posterity as po
>>> x = torch.linspace(-1, 1, 40)[:, None]
>>> model = po.fit(torch.nn.Linear(1, 1), (x, 3 * x[:, 0] + 1), "gaussian", epochs=1, seed=0)
>>> model.predict(torch.zeros(2, 1)).mean.shape
torch.Size([2])
"""

from importlib.metadata import PackageNotFoundError, version

from posterity.errors import (
    CompatibilityError,
    DataError,
    NonFiniteError,
    PosterityError,
    PosterityWarning,
    PriorError,
    ShapeError,
    StorageError,
)
from posterity.evaluation.certificate import Certificate, certify
from posterity.evaluation.chains import ChainDiagnostics, chain_diagnostics
from posterity.evaluation.conformal import conformal
from posterity.evaluation.diagnosis import diagnose
from posterity.evaluation.evaluate import compare, evaluate
from posterity.evaluation.evaluation import Evaluation
from posterity.evaluation.selective_classifier import SelectiveClassifier
from posterity.inference.advi import ADVI
from posterity.inference.algorithm import Algorithm, Plan
from posterity.inference.bam import BaM
from posterity.inference.ensemble import DeepEnsemble, Ensemble
from posterity.inference.fisher import FisherVI
from posterity.inference.gsm import GSM
from posterity.inference.ivon import IVON
from posterity.inference.laplace import LastLayerLaplace
from posterity.inference.low_rank import LowRankVI
from posterity.inference.map import MAP
from posterity.inference.mass import Mass
from posterity.inference.mc_dropout import MCDropout
from posterity.inference.mean_field import MeanFieldVI
from posterity.inference.optimizer_laplace import OptimizerLaplace
from posterity.inference.rank_one import RankOneVI
from posterity.inference.schedule import Cosine
from posterity.inference.score import ScoreVI
from posterity.inference.sghmc import SGHMC
from posterity.inference.sgld import SGLD
from posterity.inference.swag import SWAG
from posterity.model import BayesianModel, load
from posterity.posterior.posterior import Posterior
from posterity.prediction.predictive import Predictive
from posterity.prediction.propagation.settings import Propagation, Rules
from posterity.problem.densities import Density
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
from posterity.problem.priors import Laplace, Normal, Prior, ScaleMixture
from posterity.problem.problem import Info, NetworkProblem, Problem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.training.fit import fit
from posterity.training.infer import infer
from posterity.training.memory.estimate import MemoryEstimate, estimate_memory
from posterity.training.scale import pick_scale

try:
    __version__ = version("posterity")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "ADVI",
    "GSM",
    "IVON",
    "MAP",
    "SGHMC",
    "SGLD",
    "SWAG",
    "Algorithm",
    "BaM",
    "BayesianModel",
    "Bernoulli",
    "Categorical",
    "Certificate",
    "ChainDiagnostics",
    "CompatibilityError",
    "Cosine",
    "DataError",
    "DeepEnsemble",
    "Density",
    "Ensemble",
    "Evaluation",
    "FisherVI",
    "Gaussian",
    "Heteroscedastic",
    "Info",
    "Laplace",
    "LastLayerLaplace",
    "Likelihood",
    "LowRankVI",
    "MCDropout",
    "Mass",
    "MeanFieldVI",
    "MemoryEstimate",
    "Multilabel",
    "NetworkProblem",
    "NonFiniteError",
    "Normal",
    "OptimizerLaplace",
    "Plan",
    "Poisson",
    "Posterior",
    "PosterityError",
    "PosterityWarning",
    "Predictive",
    "Prior",
    "PriorError",
    "Problem",
    "Propagation",
    "Random",
    "RankOneVI",
    "Rules",
    "ScaleMixture",
    "ScoreVI",
    "SelectiveClassifier",
    "ShapeError",
    "Snapshot",
    "StorageError",
    "StudentT",
    "Tokens",
    "certify",
    "chain_diagnostics",
    "compare",
    "conformal",
    "diagnose",
    "estimate_memory",
    "evaluate",
    "fit",
    "infer",
    "load",
    "pick_scale",
]
