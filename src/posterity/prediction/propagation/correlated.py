"""Weight and bias of one Linear whose entries are correlated, on x ~ (m, v) and its outputs.

    Var y_c = phi^T S_cc phi + sum_j v_j (W_cj^2 + s_cj^2),   phi = [m, 1]        S_cc: the covariance of row c of [W | b]
    Cov(y_c, y_d) = phi^T S_cd phi                             of an x that is known

Exact, where the last operation of the network is this one; what comes after it takes its outputs as independent, as ever.
"""

from __future__ import annotations

import warnings

from torch import Tensor
from torch.nn import functional as F

from posterity.errors import PosterityWarning
from posterity.posterior.layer_moments import Layer
from posterity.prediction.propagation.joint import Joint
from posterity.prediction.propagation.run import current
from posterity.prediction.propagation.value import Later, MeanVar, Value, split

__all__ = ["CorrelatedOutput", "CorrelatedWeight"]


class CorrelatedWeight(MeanVar):
    """The weight or the bias; where its covariance serves no rule, its entries count as independent, and that is said.

    Args:
        layer: the same object for both.
    """

    __slots__ = ("layer", "std")

    def __init__(self, mean: Tensor, std: Tensor, layer: Layer) -> None:
        super().__init__(mean, Later(self._apart))
        self.std, self.layer = std, layer

    def _apart(self) -> Tensor:
        path = current().path
        where = f" (in the module {path!r})" if path else ""
        warnings.warn(
            f"propagation takes correlated weights as independent where they are read by anything but one Linear{where}: "
            "compare with via='draws'",
            PosterityWarning,
            stacklevel=2,
        )
        return self.std.square()

    def product(self, x: Value, bias: Value | None) -> Value | None:
        """W x + b; nothing for a bias with a variance of its own."""
        m, v = split(x)
        biased = isinstance(bias, CorrelatedWeight) and bias.layer is self.layer
        if isinstance(bias, MeanVar) and not biased:
            return None
        mean = F.linear(m, self.mean, bias.mean if isinstance(bias, MeanVar) else bias)

        features = m.to(self.std.dtype)  # that of the covariance, whatever the network's is

        def variance() -> Tensor:
            own = self.layer.variance(features, biased).to(mean.dtype)
            return own if v is None else own + F.linear(v, self.mean.square() + self.std.square().to(v.dtype))

        cov = Later(lambda: self.layer.covariance(features, biased)) if v is None and m.ndim == 2 else None
        return CorrelatedOutput(mean, Later(variance), cov)


class CorrelatedOutput(MeanVar):
    """Outputs of which the covariance is known, [rows, outputs, outputs], until something is done to them."""

    __slots__ = ("cov",)

    def __init__(self, mean: Tensor, var: Tensor | Later, cov: Later | None) -> None:
        super().__init__(mean, var)
        self.cov = cov

    def times(self, scale: Tensor | float) -> CorrelatedOutput:
        var, cov = self.later, self.cov
        return CorrelatedOutput(
            self.mean, Later(lambda: var() * scale), None if cov is None else Later(lambda: cov() * scale)
        )

    def write(self, value: MeanVar) -> None:
        super().write(value)
        self.cov = None

    def joint(self) -> Joint | MeanVar:
        """With the covariance, where there is one between several outputs, and no more than `Rules.covariance_outputs`."""
        count, limit = self.mean.shape[-1], current().rules.covariance_outputs
        if self.cov is None or count == 1:
            return self
        if count > limit:
            warnings.warn(
                f"the {count} outputs of a correlated layer are taken as independent of each other, each with its own "
                f"variance: raise Rules(covariance_outputs={limit}) for their covariance",
                PosterityWarning,
                stacklevel=2,
            )
            return self
        return Joint((self.mean,), self.cov(), True)
