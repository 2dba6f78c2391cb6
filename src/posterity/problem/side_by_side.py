"""The members of an ensemble, or its chains, side by side: one graph and one backward pass for all K.

    g_k = grad_{theta_k} sum_j nll_j(theta_j) = grad nll_k(theta_k)

The members share nothing, so the gradient of the sum is every member's own. Three ways:

    flat    perceptrons: one batched product per layer
    vmap    any network that `torch.vmap` can do, where it pays
    loop    one member after the other: everything else

Which one is a rule in the network, K and the rows, never a timing: the same seed gives the same bits. A member alone and
the same among others agree to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError, PosterityError
from posterity.problem.batches import Batch, tensors_in
from posterity.problem.measured import Measured
from posterity.problem.perceptron import DROPOUT, Perceptron, untouched
from posterity.problem.targets import plain
from posterity.tree import BUFFER, LIKELIHOOD, Tree, count

if TYPE_CHECKING:
    from posterity.problem.problem import NetworkProblem

__all__ = ["PATHS", "SideBySide"]

PATHS = ("auto", "flat", "vmap", "loop")
Parts = Sequence[Batch]  # of one member's batch, accumulated or not

# Weights x positions a step and member, up to which vmap pays. Measured: see `_pays`.
VMAP_PRODUCTS = 2**23


class SideBySide:
    """How one problem's members are evaluated.

    Args:
        problem: whose.
        how: "auto", or one of the three; "flat" and "vmap" still take turns for a step whose batches do not stack.

    Raises:
        CompatibilityError: an unknown path.
    """

    def __init__(self, problem: NetworkProblem, how: str) -> None:
        if how not in PATHS:
            raise CompatibilityError(f"side_by_side must be one of {', '.join(PATHS)}, got {how!r}")
        self.problem, self.how = problem, how
        self._weights = count(problem.network.trainable)
        modules = problem.network._modules
        self._convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in modules)
        self._recurrent = any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in modules)
        self._flags: list[bool] = []  # the modes that it was looked at in
        self._perceptron: Perceptron | str = ""
        self._draws: str | None = None
        self._failed: dict[str, str] = {}  # what went wrong where the loop did not

    def __call__(self, thetas: Tree, batches: Sequence[Parts], loop: Callable[[], Measured]) -> Measured:
        """What `loop` gives, by the path that is right.

        Raises:
            CompatibilityError: a path was asked for that this network cannot take.
        """
        path = self._path(len(batches))
        if path == "loop" or not all(part.rows for parts in batches for part in parts):
            return loop()
        if self.how == "auto" and path == "vmap" and not self._pays(batches[0]):
            return loop()
        joints = self._joints(batches, path)
        if not joints or not all(type(leaf) is Tensor for leaf in thetas.values()):
            return loop()
        try:
            return self._measured(thetas, joints, path)
        except Exception as error:
            found = loop()  # a fault of the batch, the network or the likelihood speaks up here, and is not remembered
            lines = str(error).strip().splitlines()
            self._failed[path] = lines[0][:200] if lines else type(error).__name__
            if self.how != "auto":
                raise _refusal(path, self._failed[path]) from error
            return found

    # --- which path ------------------------------------------------------------------------------------------------

    def _path(self, members: int) -> str:
        if self.how in ("flat", "vmap"):
            if reason := self._against(self.how):
                raise _refusal(self.how, reason)
            return self.how
        if self.how == "loop" or members == 1:
            return "loop"
        return next((path for path in ("flat", "vmap") if not self._against(path)), "loop")

    def _against(self, path: str) -> str | None:
        """Why the network cannot take this path; None where it can."""
        if self._flags is not self.problem.network._train_flags:  # an algorithm may have silenced the dropouts
            self._look()
        if path in self._failed:
            return self._failed[path]
        if self.problem.precision != "float32":
            return f"the precision is {self.problem.precision}"
        if path == "flat":
            if isinstance(self._perceptron, str):
                return self._perceptron
            return None if untouched(self._perceptron.modules) else "it has hooks, or a forward put on an instance"
        if self._draws:
            return self._draws
        network = self.problem.network
        if not network.probed:
            return "nothing is known of its forward yet: call problem.probe(batch, random)"
        if network.changing:
            return f"its forward changes the buffers {sorted(network.changing)}"
        return "its forward draws" if self.problem._noise._moves_others.get(True) is not False else None

    def _look(self) -> None:
        network = self.problem.network
        self._flags, self._failed = network._train_flags, {}
        self._perceptron = Perceptron.of(network)
        modes = zip(network._modules, self._flags)
        drawing = [type(m).__name__ for m, trains in modes if trains and type(m) in DROPOUT and m.p > 0]  # type: ignore[operator]
        self._draws = f"{drawing[0]} draws" if drawing else None

    def _pays(self, parts: Parts) -> bool:
        """Whether vmap is faster than the loop: up to 2^23 weights x positions, never with recurrent layers.

        Measured on one thread: 2.0 to 13 times at 2^18 (K = 2 to 32), 1.5 to 3.9 at 2^21, 2.4 to 3.0 at 2^22, 1.3 at 2^24,
        0.8 to 1.0 at 2^25; convolutions 2.3 at 2^23, 1.0 at 2^28. Perceptrons by "flat" gain at every size.
        """
        if self._recurrent:
            return False
        return self._weights * max(map(self._positions, parts)) <= VMAP_PRODUCTS

    def _positions(self, batch: Batch) -> int:
        """How often a weight is used: rows, rows x tokens, or (at most) the numbers in the pictures."""
        sizes = [batch.rows]
        for _, tensor in tensors_in(batch.inputs):
            vectors = tensor.is_floating_point() and tensor.dim() > 1 and not self._convolves
            sizes.append(tensor.numel() // (max(1, tensor.shape[-1]) if vectors else 1))
        return max(sizes)

    # --- batches ---------------------------------------------------------------------------------------------------

    def _joints(self, batches: Sequence[Parts], path: str) -> list[_Joint]:
        """One for each accumulated part; none where the members' batches do not stack."""
        each = batches[:1] if all(batch is batches[0] for batch in batches) else batches
        if len({len(parts) for parts in each}) > 1:
            return []
        try:
            joints = [_Joint.of(parts, len(batches)) for parts in zip(*each)]
        except (_Apart, PosterityError, RuntimeError):  # the loop says what is wrong with a batch
            return []
        return joints if path == "vmap" or all(isinstance(joint.inputs, Tensor) for joint in joints) else []

    # --- the loss --------------------------------------------------------------------------------------------------

    def _measured(self, thetas: Tree, joints: Sequence[_Joint], path: str) -> Measured:
        leaves = {n: leaf.detach().requires_grad_() for n, leaf in thetas.items() if not n.startswith(BUFFER)}
        own = {n.removeprefix(LIKELIHOOD): leaf for n, leaf in leaves.items() if n.startswith(LIKELIHOOD)}
        named = {n: leaf for n, leaf in leaves.items() if not n.startswith(LIKELIHOOD)} if own else leaves
        outputs_of = self._flat if path == "flat" else self._vmapped
        rows = sum(joint.rows for joint in joints)
        nll: Tensor | None = None
        gradient: Tree = {}
        for joint in joints:
            with torch.enable_grad():
                log_prob = self._log_probs(outputs_of(named, joint), own, joint)
                share = torch.full_like(log_prob, -1.0 / rows)
                share = share if joint.weight is None else share * joint.weight
                found = self.problem._gradient(log_prob, leaves, share)
            part = (log_prob.detach() * share).sum(1)
            nll = part if nll is None else nll + part
            gradient = {n: gradient[n].add_(new) for n, new in found.items()} if gradient else found
        assert nll is not None
        return Measured(nll, gradient, [rows] * joints[0].members)

    def _flat(self, weights: Tree, joint: _Joint) -> Tensor:
        assert isinstance(self._perceptron, Perceptron)
        inputs = joint.inputs.expand(joint.members, *joint.inputs.shape) if joint.shared else joint.inputs
        return self._perceptron(weights, self.problem.network.constants, inputs)

    def _vmapped(self, weights: Tree, joint: _Joint) -> Any:
        network = self.problem.network
        args, kwargs = network.arguments(joint.inputs)

        def member(weights: Tree, args: tuple, kwargs: dict[str, Any]) -> Any:
            return network.call(weights, {}, args, kwargs, train=True)[0]

        axis = None if joint.shared else 0
        # what a checkpoint repeats in the backward pass would run without the members' weights
        repeats = torch.autograd.graph.disable_saved_tensors_hooks("parts of the forward are repeated (checkpointing)")
        with repeats, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            return torch.vmap(member, (0, axis, axis), randomness="error")(weights, args, kwargs)

    def _log_probs(self, outputs: Any, own: Tree, joint: _Joint) -> Tensor:
        """[K, rows] log p(y | x, theta_k), unweighted."""
        likelihood = self.problem.likelihood
        pair = isinstance(outputs, tuple | list)
        every = tuple(part.flatten(0, 1) for part in outputs) if pair else outputs.flatten(0, 1)
        if joint.shared:
            one = tuple(part[0] for part in outputs) if pair else outputs[0]
            targets = likelihood.canonical(joint.targets, one)
            targets = targets.expand(joint.members, *targets.shape).flatten(0, 1)
        else:
            targets = likelihood.canonical(joint.targets, every)
        if not own:
            return likelihood.log_prob(every, targets, {}).view(joint.members, joint.rows)
        targets = targets.unflatten(0, (joint.members, joint.rows))
        return torch.vmap(likelihood.log_prob, randomness="error")(
            tuple(outputs) if pair else outputs, targets, own
        ).view(joint.members, joint.rows)


class _Apart(Exception):
    """Batches that do not stack."""


class _Joint(NamedTuple):
    """The batches of K members as one."""

    inputs: Any  # every tensor [K, rows, ...], or [rows, ...] where all have the same batch
    targets: Any  # raw, [K * rows, ...] or [rows, ...]
    weight: Tensor | None  # [K, rows] or [1, rows]
    rows: int
    members: int
    shared: bool

    @classmethod
    def of(cls, parts: Sequence[Batch], members: int) -> _Joint:
        one = parts[0]
        if len(parts) == 1 < members:
            weight = None if one.weight is None else one.weight[None]
            return cls(one.inputs, one.targets, weight, one.rows, members, True)
        if any(part.rows != one.rows or (part.weight is None) is not (one.weight is None) for part in parts):
            raise _Apart
        weight = None if one.weight is None else _stacked([part.weight for part in parts])
        inputs = _stacked([part.inputs for part in parts])
        return cls(inputs, _joined([part.targets for part in parts]), weight, one.rows, members, False)


def _stacked(values: Sequence[Any]) -> Any:
    """Nested tensors with an axis of members; `_Apart` where something in them is no plain tensor or differs."""
    one = values[0]
    if type(one) is Tensor and one.layout is torch.strided:
        if any(type(v) is not Tensor or v.dtype != one.dtype or v.shape != one.shape for v in values):
            raise _Apart
        return torch.stack(values)  # type: ignore[arg-type]
    if isinstance(one, Mapping) and all(isinstance(v, Mapping) and v.keys() == one.keys() for v in values):
        return {key: _stacked([v[key] for v in values]) for key in one}
    if isinstance(one, tuple | list) and all(isinstance(v, tuple | list) and len(v) == len(one) for v in values):
        return tuple(_stacked(parts) for parts in zip(*values))
    raise _Apart


def _joined(targets: Sequence[Any]) -> Any:
    """Raw targets end to end."""
    targets = [one if type(one) is Tensor else plain(one) for one in targets]
    one = targets[0]
    if any(type(t) is not type(one) or t.shape != one.shape for t in targets):
        raise _Apart
    if not isinstance(one, Tensor):
        return np.concatenate(targets)
    if any(t.dtype != one.dtype or t.device != one.device for t in targets):
        raise _Apart
    return torch.cat(targets)


def _refusal(path: str, reason: str) -> CompatibilityError:
    return CompatibilityError(f"side_by_side={path!r} cannot be used here: {reason}")
