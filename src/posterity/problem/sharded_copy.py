"""A copy of a network whose weights lie in shards among ranks, by FSDP2.

The copy is made without storage, cut, and given memory for this rank's rows only: no rank holds the network twice. Every
block of a stack of blocks is gathered by itself when it runs; what lies outside of them is gathered for the whole forward.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError
from posterity.problem.cut import Cut
from posterity.tree import LIKELIHOOD

__all__ = ["check_can_be_cut", "sharded_copy"]


def check_can_be_cut(parameters: Mapping[str, Tensor]) -> None:
    """Raise where parameters cannot be cut into rows.

    Raises:
        CompatibilityError: a parameter without rows, or parameters of several types.
    """
    if scalars := [name for name, tensor in parameters.items() if tensor.dim() == 0]:
        raise CompatibilityError(
            f"distribute='shards' cuts parameters into rows, and {scalars} are single numbers of shape (): give them the "
            "shape (1,)"
        )
    own = (tensor for name, tensor in parameters.items() if not name.startswith(LIKELIHOOD))
    if len(types := {tensor.dtype for tensor in own}) > 1:
        raise CompatibilityError(
            f"distribute='shards' needs parameters of one type, and there are {sorted(map(str, types))}: convert the "
            "network with .float()"
        )


def sharded_copy(network: nn.Module, cut: Cut, device: torch.device, precision: str) -> nn.Module:
    """The copy on `device`, an `FSDPModule`, with the values of this rank's rows; the original is left alone.

    Raises:
        CompatibilityError: a torch without what is needed of FSDP2; a network that cannot be copied.
    """
    from torch.distributed.device_mesh import init_device_mesh  # slow to import
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise CompatibilityError(
            f"distribute='shards' needs FSDP2 as torch 2.13 has it, and this is {torch.__version__}"
        )
    module = _without_storage(network)
    low = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = low if precision == "bf16" else MixedPrecisionPolicy()
    mesh = init_device_mesh(device.type, (cut.group.size,))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    for part in module.modules():
        if isinstance(part, FSDPModule):  # gradients are summed: each rank's loss is its part of the mean over all rows
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    module.to_empty(device=device)
    with torch.no_grad():
        for buffer, value in zip(module.buffers(), network.buffers()):
            buffer.copy_(value)
        for (name, shard), tensor in zip(module.named_parameters(), network.parameters()):
            shard.to_local().copy_(tensor[cut.rows(name)])  # type: ignore[attr-defined]
    return module


def _without_storage(module: nn.Module) -> nn.Module:
    memo = {
        id(tensor): nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=tensor.requires_grad)
        for tensor in module.parameters()
    }
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise CompatibilityError(
            f"distribute='shards' works on a copy of the network, and copy.deepcopy fails on it: {error}"
        ) from error


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of stacks: lists of several modules of one class, which have parts themselves and weights of their own."""
    uses = Counter(id(tensor) for _, tensor in module.named_parameters(remove_duplicate=False))

    def below(module: nn.Module) -> Iterator[nn.Module]:
        parts = list(module.children())
        alike = len(parts) > 1 and len({type(part) for part in parts}) == 1 and list(parts[0].children())
        if not (isinstance(module, nn.ModuleList | nn.Sequential) and alike):
            for part in parts:
                yield from below(part)
            return
        for part in parts:
            own = Counter(id(tensor) for _, tensor in part.named_parameters(remove_duplicate=False))
            if all(uses[tensor] == count for tensor, count in own.items()):  # none is tied to one outside
                yield part

    yield from below(module)
