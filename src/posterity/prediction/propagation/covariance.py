"""The covariance of a row's outputs, through all that its features, positions and branches share.

    Cov(f_c, f_d)  =  sum_w s_w (d m_c / d w) (d m_d / d w)  +  sum_e v_e (d m_c / d e) (d m_d / d e)

m are the propagated means, as functions of the means w of the weights; the variances that they contain are held constant, so
that by Stein's lemma their slopes are the expected slopes of the network. s are the variances of the weights, or of the
entries of both factors of a low-rank weight, or of the normals behind a layer whose weights are correlated, or of noisy
inputs. v is what appears at a place e beyond these slopes, independent of all else:
Var f(X) - (d E f / d mean)^2 Var X at an activation, Var x Var W at a product. Every correlation is there to first order.

A weight that one product reads at one position (a perceptron's) is independent noise at the outputs of that product: the
same sum, without a slope per weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from posterity.errors import CompatibilityError
from posterity.posterior.layer_moments import Layer
from posterity.prediction.propagation.correlated import CorrelatedWeight
from posterity.prediction.propagation.eager import Propagated, followed, unwrapped
from posterity.prediction.propagation.factored import FactoredWeight
from posterity.prediction.propagation.joint import Joint
from posterity.prediction.propagation.noise import Noise
from posterity.prediction.propagation.run import OUTPUTS, Pass, running
from posterity.prediction.propagation.value import MeanVar, Value, held, split
from posterity.problem.batches import Batch
from posterity.problem.carrier import part_name
from posterity.problem.problem import NetworkProblem
from posterity.tree import Tree

__all__ = ["covaried"]

MEMORY = 256 * 2**20  # bytes of slopes that are held at once


def covaried(problem: NetworkProblem, values: Mapping[str, Value], inputs: Any, one: Pass, memory: int = MEMORY) -> Any:
    """Means and covariance of the outputs of every row, a `Joint`; the network's own outputs where nothing varies.

    Args:
        values: of the weights, as `weight_values` gives them.
        one: settings of the pass.
        memory: bytes of slopes that are held at once, or those of one row if they are more.

    Raises:
        CompatibilityError: more outputs than `Rules.covariance_outputs`; scales of sites, which belong to variances that
            were taken as independent; an operation without a rule.
    """
    if set(one.scales) - {OUTPUTS}:
        raise CompatibilityError(
            "the scales that calibrate() found belong to variances taken as independent, not to a covariance: calibrate "
            "again with Rules(covariance=True), which fits the temperature alone, or predict without it"
        )
    leaves, spec = pytree.tree_flatten(inputs.inputs if isinstance(inputs, Batch) else inputs)
    noisy = isinstance(leaves[0], Propagated)  # the only inputs, then
    if noisy:
        leaves = list(split(leaves[0].value))
    with torch.inference_mode(False), torch.no_grad():  # slopes of what was made in inference mode do not exist
        leaves = [leaf.to(problem.network.device).clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        rows = next(len(leaf) for leaf in leaves if isinstance(leaf, Tensor))
        dims = tuple(0 if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == rows else None for leaf in leaves)

        def batch_of(own: Sequence[Any]) -> Any:
            return together_of([one if d is None else one.unsqueeze(0) for one, d in zip(own, dims)])

        def together_of(own: Sequence[Any]) -> Any:
            return pytree.tree_unflatten([Propagated(MeanVar(*own))] if noisy else own, spec)

        def row(i: int) -> Any:
            return batch_of([leaf if dim is None else leaf[i] for leaf, dim in zip(leaves, dims)])

        network = _Network(problem, values, one)
        plan = network.plan(row(0))
        if plan is None:
            return network.said(values, together_of(leaves), None)[0]
        try:
            together = torch.vmap(
                lambda *own: network.moments(plan, batch_of(own)), dims, chunk_size=max(1, memory // plan.bytes)
            )
            mean, cov = together(*leaves)
        except (RuntimeError, CompatibilityError):  # what depends on the data goes row by row, each with its own places
            pairs = [network.moments(network.plan(row(i)) or plan, row(i)) for i in range(rows)]
            mean, cov = (torch.stack(one) for one in zip(*pairs))
    pieces = mean.split([shape.numel() for shape in plan.shapes], 1)
    parts = tuple(piece.reshape(rows, *shape) for piece, shape in zip(pieces, plan.shapes))
    return Joint(parts, cov * one.scales.get(OUTPUTS, 1.0), plan.single)


class _Plan(NamedTuple):
    """What one row has shown of the network.

    Args:
        means, variances: of the weights whose slopes are asked for, by name.
        alone: names of weights whose noise is that of a place.
        places: the shapes of the places where noise appears; shapes: of a row's outputs.
        single: whether the network returns one output, not a tuple.
    """

    means: Tree
    variances: Tree
    alone: frozenset[str]
    places: tuple[torch.Size, ...]
    shapes: tuple[torch.Size, ...]
    single: bool

    @property
    def outputs(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    @property
    def bytes(self) -> int:
        """Of a row: slopes of all outputs in float32, and about twice as much on the way to them."""
        sources = sum(leaf.numel() for leaf in self.means.values()) + sum(shape.numel() for shape in self.places)
        return 12 * self.outputs * sources + 1


class _Counted(Propagated):
    """A weight that counts how often it is read."""

    reads = 0

    @property
    def value(self) -> MeanVar:
        self.reads += 1
        return self._held

    @value.setter
    def value(self, value: MeanVar) -> None:
        self._held = value


class _Network:
    """The network on one row."""

    def __init__(self, problem: NetworkProblem, values: Mapping[str, Value], one: Pass) -> None:
        self._problem, self._pass = problem, one
        self._layers = {name: value.layer for name, value in values.items() if isinstance(value, CorrelatedWeight)}
        self._values = {name: _apart(value) for name, value in values.items()}

    def said(
        self, values: Mapping[str, Value], inputs: Any, noise: Noise | None, carrier: type[Propagated] = Propagated
    ) -> tuple[Any, Tree]:
        """The outputs' values, and the weights as they went in."""
        theta: Tree = {name: carrier(leaf) if isinstance(leaf, MeanVar) else leaf for name, leaf in values.items()}
        one = Pass(self._pass.rules, fast=self._pass.fast, noise=noise)
        token = held.set(True)
        try:
            with running(one), followed(self._problem.network.module):
                return unwrapped(self._problem.outputs(theta, inputs)), theta
        finally:
            held.reset(token)

    def plan(self, inputs: Any) -> _Plan | None:
        """What a batch of one row shows; nothing where no output varies."""
        noise = Noise()
        outputs, theta = self.said(self._values, inputs, noise, _Counted)
        if not any(isinstance(part, MeanVar) for part in _parts(outputs)):
            return None
        shapes = tuple(mean.shape for mean in _means(outputs))
        limit, count = self._pass.rules.covariance_outputs, sum(shape.numel() for shape in shapes)
        if count > limit:
            raise CompatibilityError(
                f"a row has {count} outputs, and their covariance costs a backward pass each: raise "
                f"Rules(covariance_outputs={limit}) to have it, or predict with Rules(covariance=False)"
            )
        alone = (
            frozenset(
                name
                for name, value in self._values.items()
                if noise.positions[id(value)] == 1 and getattr(theta[name], "reads", 0) == 1
            )
            - self._layers.keys()
        )
        means, variances = _sources(
            {name: value for name, value in self._values.items() if name not in alone}, self._layers
        )
        noise = Noise(alone=frozenset(id(self._values[name]) for name in alone))
        self.said(self._values, inputs, noise)
        places = tuple(one.shape for one in noise.variances)
        return _Plan(means, variances, alone, places, shapes, not isinstance(outputs, tuple))

    def moments(self, plan: _Plan, inputs: Any) -> tuple[Tensor, Tensor]:
        """[n] and [n, n] of a batch of one row."""

        own = _noisy(inputs)
        given = {} if own is None else {INPUTS: own.mean}

        def said(means: Tree, shifts: list[Tensor], given: Tree) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
            values = _with(self._values, means, plan.variances, self._layers)
            noise = Noise(shifts, frozenset(id(values[name]) for name in plan.alone))
            at = inputs if own is None else _noisy_at(inputs, MeanVar(given[INPUTS], own.var))
            outputs, _ = self.said(values, at, noise)
            flat = torch.cat([mean.flatten() for mean in _means(outputs)])
            return flat, (flat.detach(), noise.variances)

        like = next(iter(self._problem.network.trainable.values()))
        zeros = [like.new_zeros(shape) for shape in plan.places]
        slopes, (mean, variances) = torch.func.jacrev(said, argnums=(0, 1, 2), has_aux=True)(plan.means, zeros, given)
        cov = mean.new_zeros(len(mean), len(mean))
        for slope, variance in [
            *((slopes[0][name], plan.variances[name]) for name in plan.means),
            *zip(slopes[1], variances),
            *((slopes[2][name], own.var) for name in given if own is not None),
        ]:
            slope = slope.flatten(1)
            cov = cov + (slope * variance.flatten()) @ slope.mT
        return mean, cov


INPUTS = "inputs"


def _noisy(inputs: Any) -> MeanVar | None:
    """The inputs' value, where they have noise."""
    own = inputs.inputs if isinstance(inputs, Batch) else inputs
    return own.value if isinstance(own, Propagated) else None


def _noisy_at(inputs: Any, value: MeanVar) -> Any:
    """The same with another value."""
    return inputs._replace(inputs=Propagated(value)) if isinstance(inputs, Batch) else Propagated(value)


def _apart(value: Value) -> Value:
    """A correlated weight by the variances of its entries, which slopes alone read."""
    return MeanVar(value.mean, value.std.square().to(value.mean)) if isinstance(value, CorrelatedWeight) else value


def _sources(values: Mapping[str, Value], layers: Mapping[str, Layer]) -> tuple[Tree, Tree]:
    """Means and variances of what varies independently.

    Args:
        layers: of weights that are correlated, by name.
    """
    means: Tree = {}
    variances: Tree = {}
    for name, value in values.items():
        if name in layers:
            if split(value)[0].ndim == 2:
                like = split(value)[0]
                means[part_name(name, _NOISE)] = like.new_zeros(layers[name].noise)
                variances[part_name(name, _NOISE)] = like.new_ones(layers[name].noise)
        elif isinstance(value, FactoredWeight):
            one, left, right = value.moment, part_name(name, "left"), part_name(name, "right")
            means |= {left: one.left_mean, right: one.right_mean}
            variances |= {left: one.left_std.square(), right: one.right_std.square()}
        elif isinstance(value, MeanVar):
            means[name], variances[name] = value.mean, value.var
    return means, variances


_NOISE = "noise"


def _with(values: Mapping[str, Value], means: Tree, variances: Tree, layers: Mapping[str, Layer]) -> dict[str, Value]:
    """The values with these means of their sources."""
    found = dict(values)
    for name, layer in layers.items():
        if (z := means.get(part_name(name, _NOISE))) is not None:
            own = [other for other, one in layers.items() if one is layer and other != name]
            for other, shift in zip([name, *own], layer.shift(z, split(values[name])[0].shape[1])):
                mean, var = split(values[other])
                found[other] = MeanVar(mean + shift.to(mean), var)  # type: ignore[union-attr, arg-type]
    for name, value in values.items():
        if name in means:
            found[name] = MeanVar(means[name], variances[name])
        elif isinstance(value, FactoredWeight) and part_name(name, "left") in means:
            left, right = (means[part_name(name, side)] for side in ("left", "right"))
            found[name] = FactoredWeight(value.moment._replace(left_mean=left, right_mean=right))
    return found


def _parts(outputs: Any) -> tuple[Value, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _means(outputs: Any) -> list[Tensor]:
    """Of a batch of one row, without the axis of rows."""
    means = [split(part)[0] for part in _parts(outputs)]
    return [mean.squeeze(0) if mean.ndim and len(mean) == 1 else mean for mean in means]
