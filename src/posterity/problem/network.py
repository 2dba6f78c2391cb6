"""A network as a pure function of its weights and buffers.

    outputs, buffers' = network.call(weights, buffers, inputs)

The user's module is the code, never the state: weights and buffers go in by `torch.func.functional_call`, tied tensors
count once, frozen ones stay constants, and a session puts back modes, attributes and buffers, also when it raises.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from posterity.errors import CompatibilityError, PosterityWarning
from posterity.problem.batches import copied, tensors_in
from posterity.problem.carrier import Carrier
from posterity.problem.fused import unfused
from posterity.problem.reset import initialised, redrawn
from posterity.problem.restore import restored
from posterity.random import Random
from posterity.tree import BUFFER, Tree, clone

__all__ = ["Network"]


class Network:
    """A module, read once: which tensors are trainable, which are constants, which modes it trains in.

    Args:
        module: any `nn.Module`; it is never changed.
        output: which output to use where the module returns several: an index, a key or attribute, or a function.
        device: where the constants and the inputs go; by default where the module's first tensor is.

    Raises:
        CompatibilityError: the module has no trainable tensor, or holds one that is not floating point.
    """

    def __init__(self, module: nn.Module, output: Any = None, device: torch.device | str | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise CompatibilityError(f"a torch.nn.Module is needed, got {type(module).__name__}")
        _refuse_lazy(module)
        _warn_of_mixed_rows(module)
        self.module = module
        self.output = output
        every = dict(module.named_parameters())
        self._parameter_names = frozenset(every)
        own = next(iter(every.values()), torch.empty(0)).device
        self.device = torch.device(device) if device is not None else own
        self.trainable: Tree = {
            name: tensor.detach().to(self.device) for name, tensor in every.items() if tensor.requires_grad
        }
        if not self.trainable:
            raise CompatibilityError(
                "every parameter of this network is frozen: set requires_grad_(True) on those that are to be inferred"
            )
        self.buffers: Tree = {name: tensor.detach().to(self.device) for name, tensor in module.named_buffers()}
        frozen = {name: tensor.detach().to(self.device) for name, tensor in every.items() if not tensor.requires_grad}
        self.constants: Tree = {**frozen, **self.buffers}
        self._foreign = self.device != own  # else the module's own constants serve, and are not passed
        self._modules = list(module.modules())
        self._train_flags = [flag or not module.training for flag in (m.training for m in self._modules)]
        self._layers = frozenset(_running_statistics(module, dict(zip(self._modules, self._train_flags))))
        self.changing: frozenset[str] = self._layers
        self.probed = False
        self.spares_inputs: bool | None = None  # whether a forward leaves its inputs as they were; None: not seen yet
        self._mode: bool | None = None
        self._signature = _Signature.of(module)
        self._around = _Around(module)
        self._tied = _has_ties(module)

    # --- calling -------------------------------------------------------------------------------------------------

    def call(
        self,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        args: tuple,
        kwargs: Mapping[str, Any],
        train: bool = False,
        then: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, Tree]:
        """Outputs and the changed buffers for one set of weights.

        `buffers` (without the prefix) replace the module's own; a forward that writes into them, or into its inputs,
        writes into copies. In evaluation mode the second result is empty. With `then` the first is `then(outputs)`, taken
        while the weights are in place: a backward pass that repeats parts of the forward (checkpointing) needs them.
        """
        watched = self.changing if self.probed else self.buffers.keys()
        # In evaluation mode torch's own layers only read theirs; a user's forward may write.
        spared = self._layers if self.probed and not train else ()
        originals = {name: buffers.get(name, self.buffers[name]) for name in watched}
        given = {name: value if name in spared else value.clone() for name, value in originals.items()}
        versions = {name: _version(value) for name, value in given.items()}
        tensors = {**(self.constants if self._foreign else {}), **given, **weights}
        state = {_INSIDE + name: tensor for name, tensor in tensors.items()}
        inputs = (args, dict(kwargs))
        own = inputs if self.spares_inputs else copied(inputs)

        def finish(outputs: Any) -> Any:
            chosen = self.choose(outputs)
            return chosen if then is None else then(chosen)

        with self.session(train):
            result = torch.func.functional_call(self._around, state, (finish, *own), tie_weights=self._tied)
            if not self.probed:
                self._refuse_new_parameters()
        if self.spares_inputs is None and not any(isinstance(one, Carrier) for _, one in tensors_in(inputs)):
            self.spares_inputs = all(map(_same, tensors_in(inputs), tensors_in(own)))
        after = {name: state[_INSIDE + name] for name in given}
        if not self.probed:
            self.changing |= {
                name
                for name, value in given.items()
                if after[name] is not value
                or _version(value) != versions[name]
                or not torch.equal(value, originals[name])
            }
        return result, {name: after[name].detach() for name in self.changing} if train else {}

    def _refuse_new_parameters(self) -> None:
        known = self._parameter_names
        if new := sorted(name for name, _ in self.module.named_parameters() if name not in known):
            raise CompatibilityError(
                f"the forward makes the parameters {new}: call the network once on a batch before it is fitted"
            )

    def reset(self, start: Tree, random: Random, warn: bool = False) -> Tree:
        """Fresh weights: the initialisers of every submodule on copies, under their own randomness.

        Frozen tensors keep their values, and so do the buffers of a submodule whose parameters are all frozen. A
        trainable tensor that no submodule resets is re-drawn with its own mean and std and, with `warn`, named in a
        warning.
        """
        with self.session(train=True):
            found = initialised(self.module, {**self.constants, **self.trainable}, random)
        kept = {prefix for prefix, m in self.module.named_modules() if _frozen(m)}
        fresh, untouched = dict(start), []
        for name, value in start.items():
            if name.startswith(BUFFER):
                own = name.removeprefix(BUFFER)
                fresh[name] = found.get(own, value) if own.rpartition(".")[0] not in kept else value
            elif name in found:
                fresh[name] = found[name]
            elif name in self.trainable:
                untouched.append(name)
                fresh[name] = redrawn(value, random.fold(name))
        if untouched and warn:
            warnings.warn(
                f"no module resets {untouched}: the other members re-draw them with their own mean and std "
                "(init='same' starts every member at your weights; a function that builds a network is the sure way)",
                PosterityWarning,
                stacklevel=2,
            )
        return clone(fresh)

    def replace_constants(self, constants: Mapping[str, Tensor]) -> None:
        """Use these frozen tensors and buffers instead of the module's own: a saved run brings its own."""
        self.constants = {name: constants[name].to(self.device) for name in self.constants}
        self.buffers = {name: self.constants[name] for name in self.buffers}
        self._foreign = True

    def choose(self, outputs: Any) -> Any:
        """The one output that the likelihood sees; `output=` chooses among several."""
        if callable(self.output):
            return self.output(outputs)
        if self.output is not None:
            try:
                by_key = isinstance(self.output, int) or isinstance(outputs, Mapping)
                return outputs[self.output] if by_key else getattr(outputs, self.output)
            except (KeyError, IndexError, AttributeError, TypeError) as error:
                raise CompatibilityError(
                    f"the network's output has no {self.output!r}: {_describe(outputs)}"
                ) from error
        if isinstance(outputs, Mapping) or hasattr(outputs, "logits"):
            logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs.logits
            if isinstance(logits, Tensor):
                return logits
            raise CompatibilityError(f"the network returns {_describe(outputs)}: say which with output='name'")
        return outputs

    def arguments(self, inputs: Any) -> tuple[tuple, dict[str, Any]]:
        """Inputs as the positional and keyword arguments of the forward.

        A mapping becomes keyword arguments where the forward takes all of its keys by name, else it is passed as it is;
        a tuple becomes positional arguments.
        """
        if isinstance(inputs, Mapping):
            if self._signature.takes(inputs.keys()):
                return (), dict(inputs)
            return (dict(inputs) if type(inputs) is not dict else inputs,), {}
        return (tuple(inputs), {}) if isinstance(inputs, tuple) else ((inputs,), {})

    # --- the user's module stays as it was -------------------------------------------------------------------------

    @contextmanager
    def session(self, train: bool) -> Iterator[None]:
        """Hold the module in training or evaluation mode; flags and attributes are put back on leaving.

        Training mode keeps in evaluation what the user left there under a training root. torch's fused transformer
        kernels, which give padded tokens other values, are off in both. Sessions nest: an inner one of the same mode costs
        nothing, so a loop opens one around all of its steps.
        """
        if self._mode is train:
            yield
            return
        outer = self._mode
        flags = [m.training for m in self._modules]
        with restored(self._modules) if outer is None else nullcontext(), unfused():
            try:
                for m, flag in zip(self._modules, self._train_flags):
                    object.__setattr__(m, "training", flag and train)
                self._mode = train
                yield
            finally:
                self._mode = outer
                for m, flag in zip(self._modules, flags):
                    object.__setattr__(m, "training", flag)

    def evaluate(self) -> list[str]:
        """Train in evaluation mode from now on; the names of the dropouts that this silences."""
        named = [(name, m) for (name, m), flag in zip(self.module.named_modules(), self._train_flags) if flag]
        silenced = [name for name, m in named if _drop_rate(m) > 0.0]
        # cuDNN differentiates recurrent layers in training mode only
        kept = {m for _, m in named if isinstance(m, nn.RNNBase) and m.dropout == 0.0}
        self._train_flags = [m in kept for m in self._modules]
        if self._mode is True:
            for m, flag in zip(self._modules, self._train_flags):
                object.__setattr__(m, "training", flag)
        return silenced

    def running_statistics_in_training(self) -> bool:
        """Whether a batch of one row cannot be trained on: a batch normalisation uses the batch's own statistics."""
        flags = zip(self._modules, self._train_flags)
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and flag for m, flag in flags)


_INSIDE = "module."  # the name of a network in what goes around it


class _Around(nn.Module):
    """A module and what is done with its outputs, as one call."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, finish: Callable[[Any], Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        return finish(self.module(*args, **kwargs))


def _drop_rate(module: nn.Module) -> float:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    return module.dropout if isinstance(module, nn.RNNBase | nn.MultiheadAttention) else 0.0


def _version(tensor: Tensor) -> int | None:
    """How often `tensor` was written; those made in inference mode do not count."""
    return None if tensor.is_inference() else tensor._version


def _same(one: tuple[str, Tensor], other: tuple[str, Tensor]) -> bool:
    return one[1].layout is torch.strided and torch.equal(one[1], other[1])


def _has_ties(module: nn.Module) -> bool:
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return len({id(tensor) for _, tensor in every}) < len(every)


def _frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


class _Signature:
    def __init__(self, names: frozenset[str], anything: bool) -> None:
        self.names, self.anything = names, anything

    @classmethod
    def of(cls, module: nn.Module) -> _Signature:
        try:
            parameters = inspect.signature(module.forward).parameters.values()
        except (TypeError, ValueError):
            return cls(frozenset(), False)
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return cls(
            frozenset(p.name for p in parameters if p.kind in named),
            any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        )

    def takes(self, keys: Iterable[Any]) -> bool:
        keys = set(keys)
        return (bool(keys & self.names) and (self.anything or keys <= self.names)) or (self.anything and not self.names)


def _describe(outputs: Any) -> str:
    if isinstance(outputs, Mapping):
        return f"a mapping with {sorted(map(str, outputs))}"
    if isinstance(outputs, tuple | list):
        return f"a {type(outputs).__name__} of {len(outputs)}"
    return f"a {type(outputs).__name__}"


def _refuse_lazy(module: nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise CompatibilityError(f"{name!r} has no shape yet: call the network once on a batch before it is fitted")
        if tensor.requires_grad and not tensor.is_floating_point():
            raise CompatibilityError(f"{name!r} is {tensor.dtype}: only real floating point parameters can be inferred")


def _warn_of_mixed_rows(module: nn.Module) -> None:
    kind = nn.modules.batchnorm._BatchNorm
    if mixing := [name for name, m in module.named_modules() if isinstance(m, kind) and m.running_mean is None]:
        warnings.warn(
            f"{mixing} normalise by the statistics of the batch in evaluation mode too, so that what is said of a row "
            "depends on the rows beside it: build them with track_running_stats=True",
            PosterityWarning,
            stacklevel=4,
        )


def _running_statistics(module: nn.Module, trains: Mapping[nn.Module, bool]) -> Iterator[str]:
    """Buffers that torch's own layers write in a training forward; a probe finds the user's."""
    for prefix, m in module.named_modules():
        writes = isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats
        writes = writes or isinstance(m, ParametrizationList)
        if writes and trains[m]:
            for name, _ in m.named_buffers(prefix=prefix, recurse=isinstance(m, ParametrizationList)):
                yield name
