"""What can be chosen about a pass, and what a calibration found for it: kept with a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from posterity.prediction.propagation.activations.moments import Accuracy

__all__ = ["Propagation", "Rules"]


@dataclass(frozen=True)
class Rules:
    """What can be chosen about the rules.

    Args:
        accuracy: of the moments of activations.
        attention: expected weights, and what the noise of their "logits" does to the outputs; "expected" weights alone; or
            those at the "mean" of the logits, the cheapest.
        pooling: correlation in [0, 1] of the positions that a pooling averages.
        activations: "moments", or "slope" for the delta method: f(m), f'(m)^2 v.
        norms: by the "expected" square; to "second-order", for rows that one feature dominates; or at the "mean": the square
            of the means alone.
        variance: of matrices and kernels, "full"; or "rank-one", a product of rows and columns (`rank_one.py`), for two
            products instead of three. What it errs by on a posterior is said where it is above 0.1.
        unknown: an operation without a rule is an "error", or goes by draws of its inputs ("draws", `sampled.py`).
        head: from moments of logits to probabilities (categorical): "points" laid on them; MacKay's "probit", class by
            class; or to "second-order" of their variance (`closed.py`). What is epistemic is that of the points in each.
        covariance: of all outputs of a row, through all that its features, positions and branches share (`covariance.py`),
            at the cost of a backward pass per output; for at most `covariance_outputs` of them.
    """

    accuracy: Accuracy = "exact"
    attention: Literal["logits", "expected", "mean"] = "logits"
    pooling: float = 0.0
    activations: Literal["moments", "slope"] = "moments"
    norms: Literal["expected", "second-order", "mean"] = "expected"
    variance: Literal["full", "rank-one"] = "full"
    unknown: Literal["error", "draws"] = "error"
    head: Literal["points", "probit", "second-order"] = "points"
    covariance: bool = False
    covariance_outputs: int = 64

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if not 0.0 <= self.pooling <= 1.0:
            raise ValueError(f"pooling must lie in [0, 1], got {self.pooling}")


_ALLOWED = {
    "accuracy": ("fast", "exact"),
    "attention": ("logits", "expected", "mean"),
    "activations": ("moments", "slope"),
    "norms": ("expected", "second-order", "mean"),
    "variance": ("full", "rank-one"),
    "unknown": ("error", "draws"),
    "head": ("points", "probit", "second-order"),
}


@dataclass(frozen=True)
class Propagation:
    """How a model propagates: its rules, and what `calibrate` found.

    Args:
        rules: chosen by you.
        scales: what multiplies the variance at a site, by the site's key, and that of the "outputs".
        fast: sites whose activation takes its fast form.
        helps: False where held-out data says that the variance does not; then the mean network answers.
    """

    rules: Rules = field(default_factory=Rules)
    scales: Mapping[str, float] = field(default_factory=dict)
    fast: frozenset[str] = frozenset()
    helps: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "rules": asdict(self.rules),
            "scales": dict(self.scales),
            "fast": sorted(self.fast),
            "helps": self.helps,
        }

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Propagation:
        known = {one.name for one in fields(Rules)}
        rules = Rules(**{name: value for name, value in held["rules"].items() if name in known})
        return cls(rules, dict(held["scales"]), frozenset(held["fast"]), bool(held["helps"]))
