"""A network as a pure function of its weights and buffers.

    outputs, buffers' = network.call(weights, buffers, inputs)

The user's module is the code, never the state: weights and buffers go in by `torch.func.functional_call`, tied tensors
count once, frozen ones stay constants, and a session puts back every mode flag and attribute, also when it raises.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from posterity.errors import CompatibilityError, PosterityWarning
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
        self.module = module
        self.output = output
        every = dict(module.named_parameters())
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
        self.changing: frozenset[str] = frozenset(_running_statistics(module))
        self.probed = False
        self._modules = list(module.modules())
        self._train_flags = [flag or not module.training for flag in (m.training for m in self._modules)]
        self._mode: bool | None = None
        self._signature = _Signature.of(module)

    # --- calling -------------------------------------------------------------------------------------------------

    def call(
        self,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        args: tuple,
        kwargs: Mapping[str, Any],
        train: bool = False,
    ) -> tuple[Any, Tree]:
        """Outputs and the changed buffers for one set of weights.

        `buffers` (without the prefix) replace the module's own; they are copied first, so that a forward that writes
        into them writes into the copy. In evaluation mode the second result is empty.
        """
        watched = self.changing if self.probed else self.buffers.keys()
        given = {name: buffers.get(name, self.buffers[name]) for name in watched}
        if train:
            given = {name: value.clone() for name, value in given.items()}
        state: Tree = {**(self.constants if self._foreign else {}), **given, **weights}
        versions = {name: value._version for name, value in given.items()}
        with self.session(train):
            outputs = torch.func.functional_call(self.module, state, args, dict(kwargs))
        if not train:
            return self.choose(outputs), {}
        if not self.probed:
            written = {n for n, v in given.items() if state[n] is not v or state[n]._version != versions[n]}
            self.changing = self.changing | written
        return self.choose(outputs), {name: state[name].detach() for name in self.changing}

    def reset(self, start: Tree, random: Random, warn: bool = False) -> Tree:
        """Fresh weights: every submodule's `reset_parameters` on copies, under its own randomness.

        Frozen tensors keep their values. A trainable tensor that no submodule resets is re-drawn with its own mean and
        std and, with `warn`, named in a warning.
        """
        copies = {f"module.{n}": t.detach().clone() for n, t in {**self.constants, **self.trainable}.items()}
        versions = {name: tensor._version for name, tensor in copies.items()}
        with random.forked(), torch.no_grad():
            torch.func.functional_call(_Reset(self.module), copies, ())
        fresh, untouched = dict(start), []
        for name, value in start.items():
            own = "module." + name.removeprefix(BUFFER)
            if own not in copies:
                continue
            if copies[own]._version != versions[own]:
                fresh[name] = copies[own].detach()
            elif not name.startswith(BUFFER):
                untouched.append(name)
                fresh[name] = _redraw(value, random.fold(name))
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

        Training mode keeps in evaluation what the user left there under a training root. Sessions nest: an inner one of
        the same mode costs nothing, so a loop opens one around all of its steps.
        """
        if self._mode is train:
            yield
            return
        outer = self._mode
        flags = [m.training for m in self._modules]
        attributes = _save_attributes(self._modules) if outer is None else None
        try:
            for m, flag in zip(self._modules, self._train_flags):
                object.__setattr__(m, "training", flag and train)
            self._mode = train
            yield
        finally:
            self._mode = outer
            if attributes is not None:
                _restore_attributes(attributes)
            for m, flag in zip(self._modules, flags):
                object.__setattr__(m, "training", flag)

    def running_statistics_in_training(self) -> bool:
        """Whether a batch of one row cannot be trained on: a batch normalisation uses the batch's own statistics."""
        flags = zip(self._modules, self._train_flags)
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and flag for m, flag in flags)


class _Reset(nn.Module):
    """Runs the initialisers of a module's parts where its tensors have been replaced by copies."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> None:
        whole = getattr(self.module, "_init_weights", None)  # Hugging Face: one initialiser for all parts
        for part in self.module.modules():
            if callable(whole):
                whole(part)
                continue
            own = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if callable(own):
                own()


def _redraw(value: Tensor, random: Random) -> Tensor:
    if value.numel() < 2:
        return value.clone()
    return value.mean() + value.std() * random.normal(tuple(value.shape), like=value)


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


def _running_statistics(module: nn.Module) -> Iterator[str]:
    """Buffers that torch's own layers write in a training forward; a probe finds the user's."""
    for prefix, m in module.named_modules():
        writes = isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats
        writes = writes or isinstance(m, ParametrizationList)
        if writes:
            for name, _ in m.named_buffers(prefix=prefix, recurse=isinstance(m, ParametrizationList)):
                yield name


_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules", "training"})


def _save_attributes(modules: list[nn.Module]) -> list[tuple[nn.Module, dict[str, Any], dict[str, Any]]]:
    """Every attribute of every module, and the contents of those that a forward could change in place."""
    saved = []
    for m in modules:
        attributes = {name: value for name, value in vars(m).items() if name not in _REGISTRIES}
        contents = {
            name: _copy(value) for name, value in attributes.items() if isinstance(value, list | dict | set | Tensor)
        }
        saved.append((m, attributes, contents))
    return saved


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy()


def _restore_attributes(saved: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]]) -> None:
    for m, attributes, contents in saved:
        for name in [name for name in vars(m) if name not in attributes and name not in _REGISTRIES]:
            vars(m).pop(name)
        vars(m).update(attributes)
        for name, content in contents.items():
            _restore_content(attributes[name], content)


def _restore_content(value: Any, content: Any) -> None:
    if isinstance(value, Tensor):
        if not torch.equal(value.detach(), content):
            value.detach().copy_(content)
    elif isinstance(value, list):
        value[:] = content
    else:
        value.clear()
        value.update(content)
