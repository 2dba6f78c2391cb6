"""Carriers: things that are not a tensor, passed to an unmodified module in the place of one.

A carrier is a tensor subclass without storage, made of a few plain tensors, its parts.
`torch.func.functional_call(module, {name: carrier}, x)` puts it in the place of a parameter, or it goes in as an input.
Each torch function that meets it asks the carrier's class for a rule, in this order:

1. the rule registered for that function with `@handles(CarrierClass, function, ...)`, unless it returns
   `NotImplemented` to decline these arguments;
2. otherwise `CarrierClass.fallback(function, types, args, kwargs)`, which raises here. A carrier that can always be
   written out as a tensor overrides it and calls the function on that tensor; one for which no answer is better than a
   wrong answer leaves it.

Shape, dtype and device are the carrier's own and need no rule. The protocol is `__torch_function__`
(https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-python-api).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from posterity.errors import CompatibilityError
from posterity.tree import Tree

__all__ = ["Carrier", "handles", "is_constant", "leaves", "name_of", "part_name", "rebuild", "stem"]

Function = Callable[..., Any]
Rule = TypeVar("Rule", bound=Function)

_PART = "::"
_CLASSES: dict[frozenset[str], type[Carrier]] = {}
_CONSTANT: set[str] = set()  # parts that no gradient is asked for by


class Carrier(Tensor):
    """Base of the carriers: dispatch by one table of rules per class; a subclass also sees the rules of its bases.

    `class Mine(Carrier, parts=("a", "b"))` is made of two tensors: its `__new__` takes them by these names, makes the
    object by `torch.Tensor._make_wrapper_subclass(cls, shape, dtype=..., device=...)`, and keeps them as attributes.
    With `constant=("a",)` no gradient is asked for by `a`.

    Where carriers of two classes meet in one call, the class with the greater `precedence` answers, wherever its
    argument stands; the other's rules are not asked.

    Raises:
        CompatibilityError: for a function without a rule (see `fallback`), and for code that goes below
            `__torch_function__`: a carrier as an input of `torch.vmap`, compiled or traced code.
        ValueError: at the definition of a second class with the same parts: `rebuild` could not tell them apart.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    constant: ClassVar[tuple[str, ...]] = ()
    precedence: ClassVar[int] = 0
    rules: ClassVar[dict[Function, Function]] = {}

    def __init_subclass__(cls, parts: Sequence[str] = (), constant: Sequence[str] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.rules = {}
        if parts:
            cls.parts, cls.constant = tuple(parts), tuple(constant)
            _CONSTANT.update(constant)
            if (other := _CLASSES.setdefault(frozenset(parts), cls)) is not cls:
                raise ValueError(
                    f"{other.__name__} already has the parts {', '.join(parts)}; name {cls.__name__}'s apart"
                )

    @classmethod
    def rule(cls, function: Function) -> Function | None:
        """The rule for a torch function: this class's own, else its bases'."""
        for base in cls.__mro__:
            if issubclass(base, Carrier) and function in base.rules:
                return base.rules[function]
        return None

    @classmethod
    def fallback(
        cls, function: Function, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What a function without a rule does; here it raises."""
        raise CompatibilityError(
            f"{cls.__name__} has no rule for {name_of(function)}; register one with "
            f"@handles({cls.__name__}, <function>), or keep {cls.__name__} out of the module that calls it"
        )

    @classmethod
    def __torch_function__(
        cls, func: Function, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(other, Carrier) and other.precedence > cls.precedence for other in types):
            return NotImplemented  # torch then asks the other class
        rule = cls.rule(func)
        if rule is not None:
            result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return cls.fallback(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Reached only where __torch_function__ was bypassed. An answer without a graph would be a silent zero gradient.
        raise CompatibilityError(
            f"{func} met a {cls.__name__} below the level of torch functions: it was an input of torch.vmap, or the "
            f"code is compiled or traced. Build the {cls.__name__} inside the transformed function, or pass a tensor"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({'x'.join(map(str, self.shape))})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, part) for part in self.parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Carrier:
        return type(self)(*(deepcopy(getattr(self, part), memo) for part in self.parts))


def handles(carrier: type[Carrier], *functions: Function) -> Callable[[Rule], Rule]:
    """Register the decorated rule in `carrier`'s table for each of `functions`.

    The rule is called with the arguments of the function itself, so it should name them as torch does, and at least one
    of them is a `carrier`, not always the one that you expect: return `NotImplemented` to leave these arguments to
    the fallback. A property is named by its getter: `Tensor.T.__get__`.

    Raises:
        ValueError: if the class already has its own rule for one of the functions.
    """

    def register(rule: Rule) -> Rule:
        for function in functions:
            if function in carrier.rules:
                raise ValueError(f"{carrier.__name__} already has a rule for {name_of(function)}")
            carrier.rules[function] = rule
        return rule

    return register


def name_of(function: Function) -> str:
    """What to call a torch function in a message; a getter or setter by the property it belongs to."""
    owner = getattr(getattr(function, "__self__", None), "__name__", None)
    name = getattr(function, "__name__", repr(function))
    return f"Tensor.{owner}" if owner and name in ("__get__", "__set__") else name


def leaves(tree: Mapping[str, Tensor]) -> Tree:
    """A tree that may hold carriers as a flat tree of plain tensors, for autograd, stacking and storage.

    A carrier `name` becomes one leaf `name::part` for each of its parts (`weight::left`, `weight::right` of a
    `Factored`); other leaves keep their names. The tensors are the very ones of the tree, not copies. `rebuild` is
    the inverse.

    Raises:
        CompatibilityError: if the name of a plain leaf holds a `::`.
    """
    flat: Tree = {}
    for name, leaf in tree.items():
        if isinstance(leaf, Carrier):
            flat.update({part_name(name, part): getattr(leaf, part) for part in leaf.parts})
        elif _PART in name:
            raise CompatibilityError(f"the name {name!r} reads like the part of a carrier; rename this parameter")
        else:
            flat[name] = leaf
    return flat


def part_name(name: str, part: str) -> str:
    """What `leaves` calls a part of the carrier `name`."""
    return f"{name}{_PART}{part}"


def stem(name: str) -> str:
    """The carrier's name of a part's, or a plain leaf's own.

    >>> stem("head.weight::left"), stem("head.bias")
    ('head.weight', 'head.bias')
    """
    return name.rpartition(_PART)[0] or name


def is_constant(name: str) -> bool:
    """Whether a leaf is a part that its carrier declares constant."""
    front, _, part = name.rpartition(_PART)
    return bool(front) and part in _CONSTANT


def rebuild(flat: Mapping[str, Tensor]) -> Tree:
    """The tree of which `flat` are the `leaves`: new carriers over the same tensors.

    Raises:
        CompatibilityError: if the parts of a name are not those of a carrier, or one is missing.
    """
    stems = {name: stem(name) for name in flat}
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in stems.values()}
    for name, leaf in flat.items():
        groups[stems[name]][name.rpartition(_PART)[2]] = leaf
    tree: Tree = {}
    for name, group in groups.items():
        if name in flat and len(group) == 1:
            tree[name] = flat[name]
        elif (carrier := _CLASSES.get(frozenset(group))) is not None:
            tree[name] = carrier(**group)
        else:
            raise CompatibilityError(f"{name!r} has the parts {sorted(group)}, which are not those of any carrier")
    return tree


def _own(function: Function) -> Function:
    """Answer from the carrier's own metadata."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    return rule


_PROPERTIES = (
    *("device", "dtype", "grad", "is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized"),
    *("is_sparse", "is_sparse_csr", "is_xpu", "itemsize", "layout", "nbytes", "ndim", "shape"),
)
_METHODS = (
    *("__hash__", "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point"),
    *("is_inference", "is_signed", "ndimension", "nelement", "numel", "size", "storage_offset", "stride"),
)
for _function in (
    *(getattr(Tensor, name).__get__ for name in _PROPERTIES),
    *(getattr(Tensor, name) for name in _METHODS),
    *(torch.is_complex, torch.is_floating_point, torch.numel),
):
    handles(Carrier, _function)(_own(_function))


@handles(Carrier, Tensor.requires_grad.__get__)  # type: ignore[attr-defined]
def _requires_grad(carrier: Carrier) -> bool:
    return any(getattr(carrier, part).requires_grad for part in carrier.parts)
