"""Which tensors a posterior is about: not the frozen ones, the unused ones as their prior, the tied ones once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posterity.model import BayesianModel
from posterity.posterior.mixture import Mixture
from posterity.posterior.moments import Normal
from posterity.posterior.posterior import Posterior
from posterity.problem.priors import Normal as NormalPrior
from posterity.random import Random
from posterity.testing.case import Case
from posterity.testing.expect import expect, near, same
from posterity.testing.resume import all_draws
from posterity.testing.worlds import CLASSES, FEATURES, batch_norm_network, inputs, labels, plain_outputs
from posterity.training.fit import fit
from posterity.tree import LIKELIHOOD

__all__ = ["frozen_unused_tied", "members_keep_their_statistics"]

PRIOR_STD = 0.37


class Odd(nn.Module):
    """A frozen layer, a frozen bias, a layer that no forward reaches, and one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        with Random(0).forked():
            self.first, self.tied = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
            self.frozen, self.unused = nn.Linear(FEATURES, 4), nn.Linear(2, 3)
            self.head = nn.Linear(4, CLASSES)
        self.tied.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.tied.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(torch.tanh(self.tied(torch.tanh(self.first(x)))))))


VARYING = {"first.weight", "first.bias", "unused.weight", "unused.bias", "head.weight", "head.bias"}


def frozen_unused_tied(case: Case) -> None:
    """Frozen tensors are bit-identical and no part of the posterior. A tensor that no forward reaches keeps its prior: a
    normal family says exactly its mean and std, anything else draws it without regard to the targets (a point leaves it
    as it was). A tied tensor has one name, and the prediction through both of its places is torch's own.
    """
    x = inputs()
    net = Odd()
    frozen = {name: leaf.clone() for name, leaf in net.named_parameters() if not leaf.requires_grad}
    centre = {name: torch.full_like(leaf, 0.2) for name, leaf in net.named_parameters()}
    options: dict[str, Any] = {
        "likelihood": "categorical",
        "method": case.algorithm,
        "prior": NormalPrior(PRIOR_STD, center=centre),
        "epochs": 2,
        "batch_size": 7,
    }
    model = fit(net, (x, labels(x)), **options)
    other = fit(net, (x, labels(x).flip(0)), **options)
    same({n: leaf for n, leaf in net.named_parameters() if not leaf.requires_grad}, frozen, "the frozen tensors")
    same(model.problem.network.constants, frozen, "the frozen tensors of the model")
    draws, others = all_draws(model.posterior), all_draws(other.posterior)
    for draw in draws:
        expect(set(draw) == VARYING, f"the posterior holds {sorted(draw)}, not {sorted(VARYING)}")
    for name in ("unused.weight", "unused.bias"):
        same([draw[name] for draw in draws], [draw[name] for draw in others], f"{name}, with other targets,")
        _keeps_prior(model.posterior, name, net.get_parameter(name).detach())
    _predicts_as_torch(model, net, x)


def _keeps_prior(posterior: Posterior, name: str, start: Tensor) -> None:
    for part in posterior.components if isinstance(posterior, Mixture) else [posterior]:
        moment = part.moments()[name]
        if posterior.finite == 1:
            same(moment.mean, start, f"{name}, which nothing uses,")
        elif posterior.finite is None and isinstance(moment, Normal):
            near(moment.mean, torch.full_like(start, 0.2), 1e-7, f"the mean of {name}, which nothing uses,")
            near(moment.std, torch.full_like(start, PRIOR_STD), 1e-7, f"the std of {name}, which nothing uses,")


def members_keep_their_statistics(case: Case) -> None:
    """Two members of a network that normalises batches carry running statistics of their own, and the prediction of each
    uses them: it is what torch says of the network with the member's weights and buffers written into it.
    """
    x = inputs()
    net = batch_norm_network()
    model = fit(net, (x, labels(x)), "categorical", case.of(2), epochs=2, batch_size=7)
    draws = all_draws(model.posterior, 2)
    means = [draw["buffer.1.running_mean"] for draw in draws]
    expect(len({tuple(one.tolist()) for one in means}) > 1, "two members have the same running statistics")
    _predicts_as_torch(model, net, x)


def _predicts_as_torch(model: BayesianModel, net: nn.Module, x: Tensor) -> None:
    """Every draw's probabilities are those of plain torch with the draw written into the network."""
    draws = 2 if model.posterior.finite is None else None
    said = model.predict(x, via="draws", draws=draws, keep="draws").per_draw  # type: ignore[attr-defined]
    made = list(model.posterior.draws(draws, Random(model.settings["seed"]).fold("draw")))
    expect(len(made) == len(said), f"{len(made)} draws were made, and {len(said)} predicted from")
    for s, draw in enumerate(made):
        plain = plain_outputs(net, {n: leaf for n, leaf in draw.items() if not n.startswith(LIKELIHOOD)}, x)
        # 4 layers of sums of at most 5 terms in float32: some 10 roundings of 6e-8 each
        near(said[s], plain.softmax(-1), 1e-6, f"the prediction of draw {s}, against torch with its weights,")
