"""Trees of tensors, and chunks of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posterity import tree as trees
from posterity.tree import CHUNK, Tree

ROWS = 7


def _tree() -> Tree:
    return {
        "w": torch.arange(6.0).view(2, 3),
        "buffer.n": torch.tensor([4, 5]),
        "likelihood.s": torch.ones(2, 1),
    }


def test_weights_are_all_but_buffers() -> None:
    assert list(trees.weights(_tree())) == ["w", "likelihood.s"]


def test_pick_takes_the_prefix_off() -> None:
    assert list(trees.pick(_tree(), trees.BUFFER)) == ["n"]
    assert list(trees.pick(_tree(), trees.LIKELIHOOD)) == ["s"]


def test_clone_is_deep_detached_and_contiguous() -> None:
    leaf = torch.ones(3, 2, requires_grad=True).T
    copy = trees.clone({"w": leaf})["w"]
    assert not copy.requires_grad
    assert copy.is_contiguous()
    copy.zero_()
    assert float(leaf.detach().sum()) == 6.0


def test_stack_and_member_are_inverse() -> None:
    one, two = _tree(), {name: leaf + 1 for name, leaf in _tree().items()}
    both = trees.stack([one, two])
    for k, tree in enumerate((one, two)):
        found = trees.member(both, k)
        assert all(torch.equal(found[name], leaf) for name, leaf in tree.items())
    trees.member(both, 0)["w"].zero_()
    assert float(both["w"][0].sum()) == 0.0  # a view


def test_map_goes_by_name() -> None:
    other = {"extra": torch.zeros(1), **{name: 2 * leaf for name, leaf in _tree().items()}}
    summed = trees.tree_map(torch.add, _tree(), other)
    assert list(summed) == list(_tree())
    assert torch.equal(summed["w"], 3 * _tree()["w"])
    with pytest.raises(KeyError):
        trees.tree_map(torch.add, _tree(), {"w": _tree()["w"]})


def test_counts_and_norms() -> None:
    assert trees.count(_tree()) == 10
    assert trees.first(_tree()).shape == (2, 3)
    # members 0, 1, 2 and 3, 4, 5; a one each
    assert trees.squared_norms(trees.weights(_tree())).tolist() == [0 + 1 + 4 + 1, 9 + 16 + 25 + 1]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_chunks_cover_each_element_once(size: int) -> None:
    counts, ones = torch.zeros(size), torch.ones(size)
    pieces = 0
    for count, one in trees.chunks(counts, ones):
        assert count.numel() == one.numel() <= CHUNK
        count.add_(one)
        pieces += 1
    assert torch.equal(counts, ones)
    assert pieces == -(-size // CHUNK)


@pytest.mark.parametrize("alive", [[True, True, True], [True, False, True], [False, False, False]])
def test_chunks_leave_out_dead_members(alive: list[bool]) -> None:
    leaf: Tensor = torch.zeros(3, CHUNK // 2 + 1, 2)
    for (piece,) in trees.chunks(leaf, alive=torch.tensor(alive)):
        piece.add_(1.0)
    wanted = torch.tensor(alive, dtype=torch.float32)[:, None, None].expand_as(leaf)
    assert torch.equal(leaf, wanted)


def test_chunks_of_a_copy_would_be_lost() -> None:
    with pytest.raises(RuntimeError, match="view"):
        next(trees.chunks(torch.zeros(3, 2).T))
