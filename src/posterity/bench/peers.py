"""What the algorithms are compared with: plain torch loops, and the peers' own mean-field methods on the same network.

Each builder returns one training step: forward, mean loss with prior or KL, backward, update. Only torch is imported up
here; a peer is imported by its builder, in the environment that has it (`make peers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CONTESTANTS", "PEERS", "PLAIN"]

Step = Callable[[], None]


def _loop(net: nn.Module, inputs: Tensor, targets: Tensor, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()

    return step


def sgd(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """Plain gradient descent: forward, backward and the least possible update."""
    return _loop(net, inputs, targets, torch.optim.SGD(net.parameters(), lr=1e-3))


def adamw(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """AdamW as it comes: the yardstick."""
    return _loop(net, inputs, targets, torch.optim.AdamW(net.parameters()))


def adamw_fused(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """AdamW with its fused kernel."""
    return _loop(net, inputs, targets, torch.optim.AdamW(net.parameters(), fused=True))


def advi_autograd(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """Bayes by backprop as it is written on top of torch: weights, KL to N(0, 1) and their gradients all by autograd."""
    means = {name: leaf.detach().clone().requires_grad_() for name, leaf in net.named_parameters()}
    log_stds = {name: torch.full_like(leaf, -4.0).requires_grad_() for name, leaf in means.items()}
    optimizer = torch.optim.Adam([*means.values(), *log_stds.values()], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        stds = {name: leaf.exp() for name, leaf in log_stds.items()}
        theta = {name: mean + stds[name] * torch.randn_like(mean) for name, mean in means.items()}
        kls = [0.5 * (stds[n] ** 2 + means[n] ** 2 - 1 - 2 * log_stds[n]).sum() for n in means]
        nll = F.cross_entropy(torch.func.functional_call(net, theta, (inputs,)), targets)
        (nll + torch.stack(kls).sum() / data_size).backward()
        optimizer.step()

    return step


def posteriors_vi_diag(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """posteriors' diagonal variational inference with torchopt's Adam, updated in place."""
    import posteriors
    import torchopt

    def log_posterior(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(net, params, batch[0])
        log_prior = posteriors.diag_normal_log_prob(params) / data_size
        return -F.cross_entropy(outputs, batch[1]) + log_prior, torch.tensor([])

    transform = posteriors.vi.diag.build(
        log_posterior, torchopt.adam(lr=1e-3), temperature=1.0 / data_size, init_log_sds=-4.0
    )
    state: Any = transform.init(dict(net.named_parameters()))

    def step() -> None:
        nonlocal state
        state, _ = transform.update(state, (inputs, targets), inplace=True)

    return step


def ivon_opt(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """The IVON authors' optimizer."""
    import ivon

    optimizer = ivon.IVON(net.parameters(), lr=0.1, ess=data_size, weight_decay=1.0 / data_size)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()

    return step


def bayesian_torch(net: nn.Module, inputs: Tensor, targets: Tensor, data_size: int) -> Step:
    """bayesian-torch's reparameterised layers, converted from the network, with AdamW as it comes."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.0}
    dnn_to_bnn(net, {**prior, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(net(inputs), targets) + get_kl_loss(net) / data_size).backward()
        optimizer.step()

    return step


PLAIN = {"sgd": sgd, "adamw": adamw, "adamw_fused": adamw_fused}
PEERS = {"posteriors_vi_diag": posteriors_vi_diag, "ivon_opt": ivon_opt, "bayesian_torch": bayesian_torch}
CONTESTANTS = {**PLAIN, "advi_autograd": advi_autograd, **PEERS}
