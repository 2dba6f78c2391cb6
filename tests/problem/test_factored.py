"""Factored weights in unmodified modules: value and every gradient against the same weight written out.

Tolerance: outputs and gradients here are sums of at most 1000 products. Their rounding errors add up to about
sqrt(1000) eps of the largest element, 4e-6 in float32 and 7e-15 in float64, and to 1000 eps, 2e-13 in float64, if they
all had one sign. So 1e-5 and 1e-12, relative to the largest element where that is above 1.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from posterity.bench.carrier_cost import measure
from posterity.errors import CompatibilityError, ShapeError
from posterity.problem.factored import Factored
from posterity.random import Random

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
RANDOM = Random(11)
SCALE = 0.5  # of both factors: rank 2 gives weights of standard deviation 0.35, so that no gate saturates


def normal(name, *shape, dtype=torch.float64):
    return RANDOM.fold(name).normal(shape).to(dtype)


def factors(name, shape, dtype=torch.float64, rank=2):
    left = (SCALE * normal(name + "left", shape[0], rank, dtype=dtype)).requires_grad_()
    right = (SCALE * normal(name + "right", *shape[1:], rank, dtype=dtype)).requires_grad_()
    return left, right


def written_out(left, right):
    return torch.einsum("ik,...k->i...", left, right)


def assert_close(actual, expected):
    tolerance = TOLERANCE[expected.dtype] * max(1.0, expected.detach().abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def tensors_of(output):
    if isinstance(output, Tensor):
        return [output]
    return [leaf for item in output if item is not None for leaf in tensors_of(item)]


def state_of(module):
    """The tensors and attributes that a call could leave behind on a module."""
    parts = list(module.modules())
    tensors = [tensor for part in parts for tensor in (*part._parameters.values(), *part._buffers.values())]
    return [id(tensor) for tensor in tensors], [sorted(part.__dict__) for part in parts]


def check(module, *inputs, dtype=torch.float64, fast=False, **options):
    """Outputs and gradients (to factors, other parameters and inputs) equal those with all matrices written out."""
    module = module.to(dtype)
    inputs = [leaf.to(dtype).requires_grad_() if leaf.is_floating_point() else leaf for leaf in inputs]
    pairs = {name: factors(name, p.shape, dtype) for name, p in module.named_parameters() if p.ndim > 1}
    assert pairs
    wanted = [leaf for pair in pairs.values() for leaf in pair]
    wanted += [p for name, p in module.named_parameters() if name not in pairs]
    wanted += [leaf for leaf in inputs if leaf.requires_grad]
    before, contents = state_of(module), {name: p.detach().clone() for name, p in module.state_dict().items()}
    own = tensors_of(module(*inputs, **options))

    def outputs_and_gradients(tree):
        outputs = tensors_of(functional_call(module, tree, tuple(inputs), options))
        seeds = [normal(f"seed{i}", *out.shape, dtype=dtype) for i, out in enumerate(outputs)]
        return outputs, torch.autograd.grad(outputs, wanted, seeds, allow_unused=True, materialize_grads=True)

    expected, gradients = outputs_and_gradients({name: written_out(*pair) for name, pair in pairs.items()})
    carriers = {name: Factored(*pair) for name, pair in pairs.items()}
    actual, found = outputs_and_gradients(carriers)

    for one, other in zip((*actual, *found), (*expected, *gradients), strict=True):
        assert type(one) is Tensor
        assert_close(one, other)
    assert all(gradient.abs().max() > 0 for gradient in gradients[: 2 * len(pairs)])
    formed = {name for name, carrier in carriers.items() if carrier._formed is not None}
    assert formed == (set() if fast else set(carriers))
    assert state_of(module) == before
    assert all(leaf.equal(contents[name]) for name, leaf in module.state_dict().items())
    assert all(one.equal(other) for one, other in zip(tensors_of(module(*inputs, **options)), own, strict=True))


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request):
    return request.param


class TestModules:
    @pytest.mark.parametrize("shape", [(3,), (7, 3), (2, 7, 3), (71, 3), (5, 17, 3)], ids=str)
    @pytest.mark.parametrize("bias", [True, False])
    def test_linear(self, shape, bias, dtype):
        check(nn.Linear(3, 11, bias=bias), normal("x", *shape), dtype=dtype, fast=True)

    @pytest.mark.parametrize("tokens", [7, 83])
    @pytest.mark.parametrize("padding_idx", [None, 0, 3, -1])
    def test_embedding(self, tokens, padding_idx, dtype):
        ids = torch.arange(2 * tokens).reshape(2, tokens) % 13
        check(nn.Embedding(13, 5, padding_idx=padding_idx), ids, dtype=dtype, fast=True)

    @pytest.mark.parametrize(("frequent", "sparse"), [(True, False), (True, True), (False, True)])
    def test_embedding_options(self, frequent, sparse):
        ids = torch.tensor([[1, 1, 2], [1, 12, 0]])
        module = nn.Embedding(13, 5, padding_idx=0, scale_grad_by_freq=frequent)
        module.sparse = False  # the reference: a sparse gradient cannot go on to the factors
        left, right = factors("w", (13, 5))
        expected = functional_call(module, {"weight": written_out(left, right)}, ids)
        module.sparse = sparse
        actual = functional_call(module, {"weight": Factored(left, right)}, ids)
        seed = normal("seed", 2, 3, 5)
        assert_close(actual, expected)
        for one, other in zip(
            torch.autograd.grad(actual, (left, right), seed), torch.autograd.grad(expected, (left, right), seed)
        ):
            assert_close(one, other)

    @pytest.mark.parametrize(
        "module", [nn.Embedding(13, 5, max_norm=1.0), nn.EmbeddingBag(13, 5, max_norm=1.0)], ids=str
    )
    def test_embeddings_that_rewrite_their_weight_are_refused(self, module):
        with pytest.raises(CompatibilityError, match=r"max_norm=1\.0 rewrites its weight.*max_norm=None"):
            functional_call(module, {"weight": Factored(*factors("w", (13, 5)))}, torch.tensor([[1, 2]]))

    def test_embedding_bag(self, dtype):
        check(nn.EmbeddingBag(13, 5), torch.arange(22).reshape(2, 11) % 13, dtype=dtype)

    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize("need_weights", [True, False])
    @pytest.mark.parametrize("kind", ["self", "memory", "three"])
    @pytest.mark.parametrize("training", [True, False])
    def test_attention(self, batch_first, need_weights, kind, training, dtype):
        module = nn.MultiheadAttention(6, 2, batch_first=batch_first).train(training)
        shapes = {"q": (5, 7, 6), "k": (5, 11, 6), "v": (5, 11, 6)}
        q, k, v = (normal(n, *(s if batch_first else (s[1], s[0], s[2]))) for n, s in shapes.items())
        call = {"self": lambda q: (q, q, q), "memory": lambda q, k: (q, k, k), "three": lambda *qkv: qkv}[kind]
        inputs = {"self": (q,), "memory": (q, k), "three": (q, k, v)}[kind]
        check(Spread(module, call), *inputs, dtype=dtype, fast=True, need_weights=need_weights)

    @pytest.mark.parametrize("batch_first", [True, False])
    def test_attention_with_other_key_and_value_sizes(self, batch_first, dtype):
        module = nn.MultiheadAttention(6, 3, kdim=5, vdim=7, batch_first=batch_first)
        q, k, v = normal("q", 5, 11, 6), normal("k", 5, 13, 5), normal("v", 5, 13, 7)
        inputs = (q, k, v) if batch_first else (leaf.transpose(0, 1) for leaf in (q, k, v))
        check(module, *inputs, dtype=dtype, fast=True)

    def test_attention_without_a_batch_with_masks_and_without_biases(self):
        module = nn.MultiheadAttention(6, 3, bias=False, add_zero_attn=True)
        mask = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
        check(Spread(module, lambda x: (x, x, x)), normal("x", 7, 6), fast=True, attn_mask=mask)
        check(
            Spread(nn.MultiheadAttention(6, 3), lambda x: (x, x, x)), normal("x", 7, 6), fast=True, attn_mask=mask,
            average_attn_weights=False,
        )  # fmt: skip

    def test_attention_with_only_one_factored_projection(self):
        module = nn.MultiheadAttention(6, 2, batch_first=True).double().eval()
        x = normal("x", 5, 7, 6)
        for name in ("in_proj_weight", "out_proj.weight"):
            left, right = factors(name, module.get_parameter(name).shape)
            with torch.no_grad():  # where the module would take its fused kernel
                actual, attention = functional_call(module, {name: Factored(left, right)}, (x, x, x))
                expected = functional_call(module, {name: written_out(left, right)}, (x, x, x))
            assert_close(actual, expected[0])
            assert_close(attention, expected[1])

    def test_attention_whose_other_weights_are_factored_too(self):
        # bias_k and bias_v have three axes, so `check` factors them as well: then everything is written out.
        module = nn.MultiheadAttention(6, 2, add_bias_kv=True)
        check(Spread(module, lambda x: (x, x, x)), normal("x", 7, 5, 6))

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    @pytest.mark.parametrize("batch_first", [True, False])
    def test_recurrent(self, kind, batch_first, dtype):
        module = kind(3, 5, num_layers=2, bidirectional=True, batch_first=batch_first)
        check(module, normal("x", 7, 11, 3), dtype=dtype)

    def test_recurrent_cells_and_projections(self):
        check(nn.GRUCell(3, 5), normal("x", 7, 3), normal("h", 7, 5))
        check(nn.LSTM(3, 7, proj_size=5), normal("x", 11, 2, 3))

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("norm_first", [True, False])
    def test_transformer_layer(self, training, norm_first, dtype):
        module = nn.TransformerEncoderLayer(6, 2, 11, dropout=0.0, norm_first=norm_first, batch_first=True)
        check(module.train(training), normal("x", 5, 7, 6), dtype=dtype, fast=True)

    @pytest.mark.parametrize(
        "factored", ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "all"]
    )
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_transformer_layer_where_it_would_be_fused(self, factored, mode, monkeypatch):
        module = nn.TransformerEncoderLayer(6, 2, 11, batch_first=True).double().eval()
        names = [name for name, p in module.named_parameters() if p.ndim > 1 and factored in (name, "all")]
        pairs = {name: factors(name, module.get_parameter(name).shape) for name in names}
        fused = []
        kernel = torch._transformer_encoder_layer_fwd
        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: fused.append(1) or kernel(*args))
        x = normal("x", 5, 7, 6)
        with mode():
            expected = functional_call(module, {name: written_out(*pair) for name, pair in pairs.items()}, x)
            assert fused == [1]
            actual = functional_call(module, {name: Factored(*pair) for name, pair in pairs.items()}, x)
        assert fused == [1]
        assert_close(actual, expected)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
    def test_transformer_with_a_padding_mask(self):
        module = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 11, 0.0, batch_first=True), 2).double().eval()
        mask = torch.arange(7).expand(5, 7) >= torch.tensor([3, 7, 5, 6, 4]).unsqueeze(1)
        x = normal("x", 5, 7, 6)
        pairs = {name: factors(name, p.shape) for name, p in module.named_parameters() if p.ndim > 1}
        with torch.no_grad():
            actual = functional_call(
                module, {n: Factored(*pair) for n, pair in pairs.items()}, x, {"src_key_padding_mask": mask}
            )
            expected = functional_call(
                module, {n: written_out(*pair) for n, pair in pairs.items()}, x, {"src_key_padding_mask": mask}
            )
            assert_close(actual[~mask], expected[~mask])
            module.requires_grad_(False)
            later = {n: Factored(*pair) for n, pair in pairs.items() if n.startswith("layers.1")}
            with pytest.raises(AssertionError, match="NestedTensor outside of its fast path"):
                functional_call(module, later, x, {"src_key_padding_mask": mask})

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"stride": 2, "padding": 1, "dilation": 2},
            {"padding": "same", "bias": False},
            {"padding_mode": "circular"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
    def test_convolution(self, kind, options, dtype):
        if "padding_mode" in options:
            options = {"padding_mode": "circular", "padding": 1}
        axes = (5, 9, 11)[: 1 + (nn.Conv1d, nn.Conv2d, nn.Conv3d).index(kind)]
        kernel = (3, 5, 1)[: len(axes)]
        check(kind(4, 7, kernel, **options), normal("x", 2, 4, *axes), dtype=dtype, fast=True)

    def test_convolution_without_a_fast_path(self, dtype):
        check(nn.Conv2d(4, 6, (2, 3), groups=2), normal("x", 5, 4, 7, 11), dtype=dtype)
        check(nn.ConvTranspose2d(3, 5, (2, 3), stride=2), normal("x", 2, 3, 7, 11), dtype=dtype)

    def test_bilinear(self):
        check(nn.Bilinear(3, 5, 7), normal("x", 11, 3), normal("y", 11, 5))

    @pytest.mark.parametrize("transposed", [False, True])
    def test_tied_weights_share_one_carrier(self, transposed, dtype):
        check(Tied(transposed), torch.arange(77).reshape(7, 11) % 13, dtype=dtype, fast=True)

    def test_tied_weights_are_formed_once(self, monkeypatch):
        weight, forms = Factored(*factors("w", (13, 5))), []
        matmul = torch.matmul
        monkeypatch.setattr(torch, "matmul", lambda *args: forms.append(1) or matmul(*args))
        module = nn.ModuleDict({"a": nn.EmbeddingBag(13, 5), "b": nn.EmbeddingBag(13, 5)}).double()
        for bag in module.values():
            functional_call(bag, {"weight": weight}, torch.tensor([[1, 2]]))
        assert forms == [1]


class Spread(nn.Module):
    """Calls attention with the very same tensor in two or three places, as torch's own layers do."""

    def __init__(self, attention, call):
        super().__init__()
        self.attention, self.call = attention, call

    def forward(self, *inputs, **options):
        return self.attention(*self.call(*inputs), **options)


class Tied(nn.Module):
    def __init__(self, transposed):
        super().__init__()
        self.embedding, self.head, self.transposed = nn.Embedding(13, 5, padding_idx=0), nn.Linear(5, 13), transposed
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        hidden = torch.tanh(self.embedding(ids))
        return hidden @ self.head.weight.T if self.transposed else self.head(hidden)


X, Y, V, M = normal("X", 7, 3), normal("Y", 11, 5), normal("V", 3), normal("M", 7, 11)
BATCH = normal("B", 2, 7, 3)
# name: function of W [11, 3], and whether it must not write W out
FUNCTIONS = OrderedDict(
    times_transpose=(lambda w: X @ w.T, True),
    times_t=(lambda w: torch.matmul(X, w.t()), True),
    times_mt=(lambda w: X.mm(w.mT), True),
    batch=(lambda w: BATCH @ w.transpose(-1, -2), True),
    batch_right=(lambda w: w @ BATCH.transpose(1, 2), True),
    vector=(lambda w: w @ V, True),
    vector_left=(lambda w: M[0] @ w, True),
    named=(lambda w: torch.matmul(input=M, other=w), True),
    tall=(lambda w: normal("tall", 71, 11) @ w, True),
    mm=(lambda w: torch.mm(M, mat2=w), True),
    addmm=(lambda w: torch.addmm(X, M, w, beta=0.5, alpha=2), True),
    addmm_method=(lambda w: X.addmm(M, w), True),
    addmm_bias=(lambda w: torch.addmm(V, M, w), True),
    both=(lambda w: w @ w.t(), False),
    chunk=(lambda w: torch.cat([F.linear(X, rows) for rows in w.chunk(3)], 1), True),
    chunk_columns=(lambda w: [F.linear(X[:, :2], w.chunk(2, dim=1)[0]), w.chunk(2, -1)[1] @ V[:1]], True),
    split=(lambda w: torch.cat([F.linear(X, rows) for rows in w.split([2, 4, 5])], 1), True),
    split_even=(lambda w: [F.linear(X, rows) for rows in torch.split(w, 4)], True),
    narrow=(lambda w: F.linear(X, w.narrow(0, 2, 5)), True),
    rows=(lambda w: F.linear(X, w[2:9:3]), True),
    block=(lambda w: F.linear(X[:, 1:], w[4:, 1:]), True),
    copies=(lambda w: F.linear(X, w.clone().contiguous().to(torch.float64).double()), True),
    transpose_self=(lambda w: w.transpose(0, 0) @ V, False),
    embedding=(lambda w: F.embedding(torch.tensor([3, 10, 10]), w, padding_idx=-1), True),
    row=(lambda w: w[3] @ V, False),
    gather=(lambda w: w[torch.tensor([1, 1, 5])] @ V, False),
    scaled=(lambda w: 2 * w + w.sin(), False),
    normed=(lambda w: F.linear(X, w / w.norm(dim=1, keepdim=True)), False),
    stacked=(lambda w: torch.stack([w, w.detach()]), False),
    view=(lambda w: w.view(3, 11) @ M[0], False),
    bmm=(lambda w: torch.bmm(BATCH, w.t().expand(2, 3, 11)), False),
    einsum=(lambda w: torch.einsum("bi,oi->bo", X, w), False),
    in_place_elsewhere=(lambda w: torch.zeros(11, 3, dtype=torch.float64).add_(w), False),
    other_type=(lambda w: X.to(w) @ V, False),
    input=(lambda w: F.linear(w, X), False),
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, monkeypatch):
    function, fast = FUNCTIONS[name]
    left, right = factors("w", (11, 3))
    expected = tensors_of(function(written_out(left, right)))
    if fast:
        monkeypatch.setattr(Factored, "dense", lambda self: pytest.fail("W was written out"))
    actual = tensors_of(function(Factored(left, right)))
    for one, other in zip(actual, expected, strict=True):
        assert type(one) is Tensor
        assert_close(one, other)
        assert one.requires_grad == other.requires_grad
        if not other.requires_grad:
            continue
        seed = normal("seed", *other.shape)
        gradients = [torch.autograd.grad(out, (left, right), seed, retain_graph=True) for out in (one, other)]
        for found, wanted in zip(*gradients):
            assert_close(found, wanted)


def test_products_with_out_fill_it():
    weight, out = Factored(*(leaf.detach() for leaf in factors("w", (11, 3)))), torch.zeros(7, 3, dtype=torch.float64)
    assert torch.matmul(M, weight, out=out) is out
    assert_close(out, M @ weight.dense())
    assert_close(torch.addmm(V, M, weight, out=out), V + M @ weight.dense())


def test_views_of_a_factored_weight_are_factored():
    weight = Factored(*factors("w", (12, 5)))
    pieces = {
        "t": (weight.T, (5, 12)),
        "chunk": (weight.chunk(3)[1], (4, 5)),
        "rows": (weight[1:7], (6, 5)),
        "detach": (weight.detach(), (12, 5)),
        "double": (weight.float(), (12, 5)),
    }
    for name, (piece, shape) in pieces.items():
        assert type(piece) is Factored, name
        assert piece.shape == shape, name
        assert piece.rank == 2, name
    assert not weight.detach().requires_grad
    assert weight.float().dtype == weight.float().left.dtype == torch.float32
    assert_close(weight.float().double().dense(), weight.dense())  # the factors here are exact in float32
    assert weight.to(torch.float64) is weight  # nothing changes, so what it has formed is kept
    assert type(Factored(*factors("k", (5, 3, 2, 2))).to(memory_format=torch.channels_last)) is Tensor
    kernel = Factored(*factors("k", (5, 3, 2, 2)))
    assert_close(kernel[1:, :2].dense(), kernel.dense()[1:, :2])


def test_second_derivatives():
    """Hessian-vector products go through the fast path as through W."""
    left, right = factors("w", (11, 3))
    x, vector = normal("x", 71, 3), (normal("l", 11, 2), normal("r", 3, 2))
    products = []
    for weight in (Factored(left, right), written_out(left, right)):
        loss = F.linear(x, weight).tanh().square().mean()
        gradient = torch.autograd.grad(loss, (left, right), create_graph=True)
        products.append(torch.autograd.grad(gradient, (left, right), vector))
    for one, other in zip(*products):
        assert_close(one, other)


class TestConstruction:
    def test_a_kernel_is_made_from_flat_factors_and_a_shape(self):
        left, right = normal("l", 5, 2), normal("r", 3 * 2 * 7, 2)
        weight = Factored(left, right, shape=(5, 3, 2, 7))
        assert weight.shape == (5, 3, 2, 7)
        assert_close(weight.dense(), (left @ right.t()).reshape(5, 3, 2, 7))
        assert Factored(left, right, shape=(5, 42)).right is right

    @pytest.mark.parametrize(
        ("left", "right", "shape"),
        [
            ((5, 2), (3, 7), None),
            ((5,), (3, 2), None),
            ((5, 2, 2), (3, 2), None),
            ((5, 2), (2,), None),
            ((5, 2), (42, 2), (5, 3, 2, 8)),
            ((5, 2), (42, 2), (7, 42)),
            ((5, 2), (1, 2), (5,)),
        ],
    )
    def test_factors_that_do_not_fit(self, left, right, shape):
        with pytest.raises(ShapeError, match=r"factors"):
            Factored(torch.ones(left), torch.ones(right), shape)

    def test_factors_of_two_kinds(self):
        with pytest.raises(
            CompatibilityError, match=r"one floating dtype.*torch\.float32 on cpu and torch\.float64 on cpu"
        ):
            Factored(torch.ones(5, 2), torch.ones(3, 2).double())
        with pytest.raises(CompatibilityError, match="one floating dtype"):
            Factored(torch.ones(5, 2).long(), torch.ones(3, 2).long())

    def test_repr(self):
        assert repr(Factored(torch.ones(8, 2), torch.ones(5, 2))) == "Factored(8x5, rank 2)"
        assert f"{[Factored(torch.ones(8, 2), torch.ones(3, 7, 7, 2))]}" == "[Factored(8x3x7x7, rank 2)]"


WRITES = {
    "add_": lambda w: w.add_(1),
    "setitem": lambda w: w.__setitem__(0, 1.0),
    "data": lambda w: setattr(w, "data", torch.ones(11, 3)),
    "grad": lambda w: setattr(w, "grad", torch.ones(11, 3)),
    "out": lambda w: torch.add(torch.ones(11, 3), 1, out=w),
    "init": lambda w: nn.init.xavier_uniform_(w),
    "requires_grad_": lambda w: w.requires_grad_(),
}


class TestReadOnly:
    @pytest.mark.parametrize("name", WRITES)
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_writes_raise(self, name, mode):
        with mode():
            weight = Factored(*(leaf.detach() for leaf in factors("w", (11, 3))))
            with pytest.raises(CompatibilityError, match="would write into a factored weight, which is read-only"):
                WRITES[name](weight)

    def test_augmented_assignment_raises(self):
        weight = Factored(*factors("w", (11, 3)))
        with pytest.raises(CompatibilityError, match="would write into"):
            weight *= 2

    def test_a_write_through_a_view_of_the_formed_weight_is_found(self):
        weight = Factored(*(leaf.detach() for leaf in factors("w", (11, 3))))
        weight[0].zero_()
        with pytest.raises(CompatibilityError, match="was formed and then written to in place"):
            weight.dense()


class TestModes:
    @pytest.mark.parametrize("rows", [7, 71])
    def test_autocast(self, rows):
        """bfloat16 keeps 8 bits: operands, middle and result rounded once each, 3 * 2^-8 of the largest element."""
        left, right = factors("w", (11, 3), torch.float32)
        layer, x = nn.Linear(3, 11), normal("x", rows, 3, dtype=torch.float32)
        results = []
        for weight in (Factored(left, right), written_out(left, right)):
            with torch.autocast("cpu", torch.bfloat16):
                out = functional_call(layer, {"weight": weight}, (x,))
            assert out.dtype == torch.bfloat16
            seed = normal("seed", *out.shape, dtype=torch.bfloat16)
            results.append((out.float(), *torch.autograd.grad(out, (left, right), seed)))
        for one, other in zip(*results):
            assert one.dtype == torch.float32
            torch.testing.assert_close(one, other, rtol=0, atol=3 * 2**-8 * other.abs().max().item())

    def test_autocast_forms_the_weight_in_full(self):
        left, right = factors("w", (11, 3), torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            formed = Factored(left, right).dense()
        assert formed.dtype == torch.float32
        assert_close(formed, written_out(left, right))

    @pytest.mark.parametrize("first", [torch.no_grad, torch.inference_mode])
    def test_a_weight_formed_without_a_graph_is_formed_again_for_training(self, first):
        left, right = factors("w", (20, 3))
        left_hidden, right_hidden = factors("h", (20, 5))
        module, x = nn.LSTM(3, 5).double(), normal("x", 7, 2, 3)
        tree = {"weight_ih_l0": Factored(left, right), "weight_hh_l0": Factored(left_hidden, right_hidden)}
        with first():
            without = functional_call(module, tree, x)[0]
            formed = tree["weight_ih_l0"].dense()
            assert tree["weight_ih_l0"].dense() is formed
        out = functional_call(module, tree, x)[0]
        assert_close(out.detach(), without.clone())
        assert all(gradient.abs().max() > 0 for gradient in torch.autograd.grad(out.sum(), (left, right, left_hidden)))
        with torch.no_grad():
            assert tree["weight_ih_l0"].dense() is tree["weight_ih_l0"].dense()

    def test_constant_factors_formed_in_inference_mode_serve_gradients_of_others(self):
        weight, x = Factored(*(leaf.detach() for leaf in factors("w", (11, 3)))), normal("x", 7, 3).requires_grad_()
        with torch.inference_mode():
            weight.dense()
        (gradient,) = torch.autograd.grad(torch.einsum("bi,oi->bo", x, weight).sum(), x)
        assert_close(gradient, weight.dense().sum(0).expand(7, 3))

    def test_built_inside_function_transforms(self):
        layer, x = nn.Linear(3, 11).double(), normal("x", 7, 3)
        left, right = normal("l", 5, 11, 2), normal("r", 5, 3, 2)

        def loss(left, right):
            weight = Factored(left, right)
            return functional_call(layer, {"weight": weight}, x).square().sum() + weight.sin().sum()

        gradients = torch.vmap(torch.func.grad(loss))(left, right)
        for k in range(5):
            leaf = left[k].clone().requires_grad_()
            assert_close(gradients[k], torch.autograd.grad(loss(leaf, right[k]), leaf)[0])

    def test_closed_over_by_function_transforms(self):
        weight, x = Factored(*factors("w", (11, 3))), normal("x", 7, 3)
        assert_close(
            torch.vmap(lambda row: F.linear(row, weight) + weight.sum())(x), F.linear(x, weight) + weight.sum()
        )

    def test_as_the_input_of_a_transform_it_raises(self):
        weight = Factored(*factors("w", (11, 3)))
        with pytest.raises(CompatibilityError, match="Build the Factored inside the transformed function"):
            torch.vmap(lambda row: row.sin())(weight)
        with pytest.raises(CompatibilityError, match="Build the Factored inside the transformed function"):
            torch.func.grad(lambda weight: F.linear(normal("x", 7, 3), weight).sum())(weight)

    def test_compiled_code_runs_it_uncompiled(self):
        left, right = factors("w", (11, 3))
        layer, x = nn.Linear(3, 11).double(), normal("x", 7, 3)

        def loss(left, right):
            weight = Factored(left, right)
            return functional_call(layer, {"weight": weight}, x).square().sum() + weight.sin().sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dynamo says, once a process, that it cannot trace the constructor
            actual = torch.compile(loss, backend="eager")(left, right)
        expected = loss(left, right)
        assert_close(actual, expected)
        for one, other in zip(torch.autograd.grad(actual, (left, right)), torch.autograd.grad(expected, (left, right))):
            assert_close(one, other)


def test_nothing_outlives_the_carrier():
    """Reference counts alone free the carrier, the weight that it formed and, after backward, its graph."""
    left, right = factors("w", (11, 3))
    gc.collect()
    gc.disable()
    try:
        weight = Factored(left, right)
        out = weight.sin().sum() + F.linear(normal("x", 7, 3), weight).sum()
        gone = [weakref.ref(weight), weakref.ref(weight.dense())]
        del weight
        assert gone[0]() is None
        out.backward()
        assert gone[1]() is None
        del out
    finally:
        gc.enable()
    assert left.grad is not None
    assert right.grad is not None


@pytest.mark.slow
def test_it_costs_less_than_a_fifth_of_the_dense_layer():
    """0.08 measured; process CPU time, minimum over interleaved repeats."""
    assert measure()["ratio"] < 0.2
