"""How the chains of a sampler went, as JSON: what a `Chains` posterior carries and diagnostics read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from posterity.inference.mass import similarity
from posterity.posterior.files import strict_json

if TYPE_CHECKING:
    from posterity.inference.sampler import Sampler, SamplerState

__all__ = ["account"]


def account(sampler: Sampler, state: SamplerState, lost: dict[int, str]) -> dict[str, Any]:
    """The account after the last step; lists have one entry per member, what is not finite is null."""
    limits = [sampler.limits(state, k) for k in range(sampler.members)]
    geometry = sampler.geometry
    told = {
        "method": sampler.name,
        "warmup": sampler.warmup,
        "thin": sampler.thin,
        "temperature": sampler.temperature,
        "friction": getattr(sampler, "friction", None),
        "step_size": state.step_size.tolist(),
        "stable_limit": [stable for stable, _ in limits],
        "noise_limit": [quiet for _, quiet in limits],
        "mass": {"kind": geometry.kind, "layer_wise": geometry.layer_wise, "shared": geometry.shared},
        "mass_similarity": similarity(state.mass),
        **_heat(sampler, state),
        **state.tally.told(),
        "lost": {str(k): reason for k, reason in lost.items()},
        "trace": state.trace.told(int(state.steps)),
    }
    return strict_json(told, null=True)


def _heat(sampler: Sampler, state: SamplerState) -> dict[str, Any]:
    """Quantiles of r, the share of weights with r > 1, which noise correction cannot help, and what these are at."""
    if not state.noise.numel():
        return {"noise_ratio": None, "effective_temperature": None}
    each = zip(state.step_size, state.noise, state.mass)
    ratio = torch.stack([sampler.noise_ratio(float(h), noise, mass) for h, noise, mass in each]).double()
    probe = ratio.flatten()[:: max(1, ratio.numel() // 100_000)]
    quantiles = torch.quantile(probe, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return {
        "noise_ratio": {
            **dict(zip(("0.05", "0.5", "0.95"), quantiles)),
            "clamped": float((ratio > 1.0).double().mean()),
        },
        # what the correction cannot take off: r - 1 where r > 1
        "effective_temperature": (sampler.temperature * (1.0 + (ratio - 1.0).clamp(min=0.0)).mean(1)).tolist(),
    }
