"""Small networks of every kind that people bring, each with rows of its own and what is expected of it.

An animal is a function without arguments that returns (network, inputs, targets); `animal` puts it into `ZOO`. The sizes
are coprime: 7 rows, 3 features, 5 classes, 4 tokens of a vocabulary of 11.
"""

from __future__ import annotations

import random as python_random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import posterity as po

ROWS, FEATURES, CLASSES, TOKENS, VOCABULARY = 7, 3, 5, 4, 11

# Why LastLayerLaplace refuses, in the words of its error.
NO_LINEAR = "calls no nn.Linear"
DENSE = "Fisher information of dense outputs"
OF_TOKENS = "Fisher information of tokens"
TIED = "tied to another layer"
ELSEWHERE = "also used elsewhere"
PARAMETRISED = "made from others by a parametrisation"
FROZEN = "is frozen"
NOT_ALL = "would be given no uncertainty"
MIXED = "the rows of a batch mix"


@dataclass(frozen=True)
class Animal:
    """One network and what is expected of it.

    Args:
        shape: of the predicted probabilities or means.
        laplace: None where LastLayerLaplace works, else words of its error.
        no_reset: the parameters that no initialiser knows, which an ensemble's warning names.
        idle: the parameters that no forward reaches.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Any, Any]]
    likelihood: str | po.Likelihood
    shape: tuple[int, ...]
    laplace: str | None = None
    output: Any = None
    target: str | None = None
    no_reset: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


ZOO: dict[str, Animal] = {}


def animal(likelihood: str | po.Likelihood, *shape: int, **expected: Any) -> Callable:
    """Register a builder; `shape` is what follows the rows."""

    def register(build: Callable) -> Callable:
        ZOO[build.__name__] = Animal(build.__name__, build, likelihood, (ROWS, *shape), **expected)
        return build

    return register


def labels() -> Tensor:
    return torch.arange(ROWS) % CLASSES


def features() -> Tensor:
    return torch.randn(ROWS, FEATURES)


def images(channels: int = 1, height: int = 6, width: int = 8) -> Tensor:
    return torch.randn(ROWS, channels, height, width)


def sequences() -> Tensor:
    return torch.randn(ROWS, TOKENS, FEATURES)


def words() -> Tensor:
    return torch.randint(0, VOCABULARY, (ROWS, TOKENS))


def values() -> Tensor:
    return torch.randn(ROWS)


class Does(nn.Module):
    """Parts, and a forward given as a function of the module and its inputs."""

    def __init__(self, forward: Callable, **parts: Any) -> None:
        super().__init__()
        self._does = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self._does(self, *args)


# --- convolutions ------------------------------------------------------------------------------------------------------


@animal("categorical", CLASSES)
def conv_groups_dilation() -> tuple:
    conv = nn.Conv2d(2, 4, 3, groups=2, dilation=2)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 2 * 4, CLASSES)), images(2), labels()


@animal("categorical", CLASSES)
def conv_rectangular() -> tuple:
    net = nn.Sequential(nn.Conv2d(1, 2, (3, 5)), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES))
    return net, images(), labels()


@animal("categorical", CLASSES, laplace=NO_LINEAR)
def conv_circular() -> tuple:
    conv = nn.Conv2d(1, CLASSES, 3, padding=1, padding_mode="circular")
    return nn.Sequential(conv, nn.AdaptiveMaxPool2d(1), nn.Flatten()), images(), labels()


@animal("gaussian", 5, laplace=NO_LINEAR)
def conv_transposed() -> tuple:
    net = nn.Sequential(nn.ConvTranspose1d(FEATURES, 1, 2), nn.Flatten())
    return net, torch.randn(ROWS, FEATURES, 4), torch.randn(ROWS, 5)


@animal("categorical", 6, 8, CLASSES, laplace=NO_LINEAR)
def segmentation() -> tuple:
    targets = torch.randint(0, CLASSES, (ROWS, 6, 8))
    targets[:, 0, 0] = labels()
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, CLASSES, 1)), images(), targets


@animal("categorical", TOKENS, CLASSES, laplace=DENSE)
def segmentation_by_a_linear() -> tuple:
    net = Does(lambda m, x: m.head(x).movedim(-1, 1), head=nn.Linear(FEATURES, CLASSES))
    targets = (labels()[:, None] + torch.arange(TOKENS)) % CLASSES
    return net, sequences(), targets


# --- sequences ---------------------------------------------------------------------------------------------------------


def _lstm(outputs: int, **options: Any) -> dict[str, nn.Module]:
    return {"lstm": nn.LSTM(FEATURES, 6, **options), "head": nn.Linear(6, outputs)}


@animal("categorical", CLASSES)
def lstm_classifier() -> tuple:
    net = Does(lambda m, x: m.head(m.lstm(x)[0][:, -1]), **_lstm(CLASSES, batch_first=True, num_layers=2))
    return net, sequences(), labels()


@animal("gaussian")
def lstm_flat() -> tuple:
    """A regressor that returns (N,) and is given (N, 1)."""
    net = Does(lambda m, x: m.head(m.lstm(x)[0][:, -1]).squeeze(1), **_lstm(1, batch_first=True))
    return net, sequences(), values()[:, None]


@animal("gaussian")
def lstm_column() -> tuple:
    """A regressor that returns (N, 1) and is given (N,)."""
    return Does(lambda m, x: m.head(m.lstm(x)[0][:, -1]), **_lstm(1, batch_first=True)), sequences(), values()


@animal("categorical", CLASSES)
def lstm_time_first() -> tuple:
    """The Linear sees [time, rows, h]; there are as many steps as rows in a batch, so that only values tell them apart."""
    net = Does(lambda m, x: m.head(m.lstm(x.transpose(0, 1))[0]).mean(0), **_lstm(CLASSES))
    return net, torch.randn(ROWS, 4, FEATURES), labels()


def _packed(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    return m.head(m.lstm(packed)[1][0][-1])


@animal("categorical", CLASSES)
def lstm_packed() -> tuple:
    lengths = 1 + torch.arange(ROWS) % TOKENS
    return Does(_packed, **_lstm(CLASSES, batch_first=True)), (sequences(), lengths), labels()


@animal("categorical", CLASSES)
def gru() -> tuple:
    parts = {"gru": nn.GRU(FEATURES, 4, batch_first=True, bidirectional=True), "head": nn.Linear(8, CLASSES)}
    return Does(lambda m, x: m.head(m.gru(x)[1].transpose(0, 1).flatten(1)), **parts), sequences(), labels()


@animal("tokens", TOKENS, VOCABULARY, laplace=OF_TOKENS)
def lstm_language() -> tuple:
    parts = {"embed": nn.Embedding(VOCABULARY, FEATURES, padding_idx=0), **_lstm(VOCABULARY, batch_first=True)}
    x = words()
    return Does(lambda m, x: m.head(m.lstm(m.embed(x))[0]), **parts), x, x


@animal("categorical", CLASSES)
def attention() -> tuple:
    parts = {"attend": nn.MultiheadAttention(FEATURES, 1, batch_first=True), "head": nn.Linear(FEATURES, CLASSES)}
    return Does(lambda m, x: m.head(m.attend(x, x, x)[0].mean(1)), **parts), sequences(), labels()


@animal("categorical", CLASSES)
def transformer_encoder() -> tuple:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
    parts = {"into": nn.Linear(FEATURES, 6), "encoder": nn.TransformerEncoder(layer, 2), "head": nn.Linear(6, CLASSES)}
    return Does(lambda m, x: m.head(m.encoder(m.into(x))[:, 0]), **parts), sequences(), labels()


@animal("tokens", TOKENS, VOCABULARY, laplace=TIED)
def tied_embedding() -> tuple:
    net = Does(
        lambda m, x: m.head(m.embed(x)),
        embed=nn.Embedding(VOCABULARY, FEATURES),
        head=nn.Linear(FEATURES, VOCABULARY, bias=False),
    )
    net.head.weight = net.embed.weight
    x = words()
    return net, x, x


@animal(po.Categorical(classes=tuple(range(VOCABULARY))), VOCABULARY, laplace=TIED)
def tied_head_first() -> tuple:
    """The shared weight goes by the name of the output layer."""
    net = Does(
        lambda m, x: m.head(m.embed(x).mean(1)),
        head=nn.Linear(FEATURES, VOCABULARY),
        embed=nn.Embedding(VOCABULARY, FEATURES),
    )
    net.embed.weight = net.head.weight
    x = words()
    return net, x, torch.arange(ROWS)


@animal("categorical", CLASSES, laplace=ELSEWHERE)
def weight_used_by_hand() -> tuple:
    net = Does(lambda m, x: m.head(torch.tanh(x @ m.head.weight.T @ m.head.weight)), head=nn.Linear(FEATURES, CLASSES))
    return net, features(), labels()


# --- parameters --------------------------------------------------------------------------------------------------------


@animal("categorical", CLASSES)
def frozen_trunk() -> tuple:
    """Frozen, and its normalisation left in evaluation mode under a training root."""
    trunk = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU()).requires_grad_(False)
    trunk[1].running_mean.uniform_()
    trunk.eval()
    return nn.Sequential(trunk, nn.Linear(6, CLASSES)), features(), labels()


@animal("categorical", CLASSES, laplace=FROZEN)
def frozen_head() -> tuple:
    net = nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    net[2].requires_grad_(False)
    return net, features(), labels()


@animal("categorical", CLASSES, idle=("unused.bias", "unused.weight"))
def unused_layer() -> tuple:
    parts = {"head": nn.Linear(FEATURES, CLASSES), "unused": nn.Linear(FEATURES, 2)}
    return Does(lambda m, x: m.head(x), **parts), features(), labels()


@animal("categorical", CLASSES, no_reset=("0.parametrizations.weight.original0", "0.parametrizations.weight.original1"))
def weight_norm() -> tuple:
    first = parametrizations.weight_norm(nn.Linear(FEATURES, 6))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, CLASSES)), features(), labels()


@animal("categorical", CLASSES, laplace=PARAMETRISED, no_reset=("2.parametrizations.weight.original",))
def spectral_norm() -> tuple:
    last = parametrizations.spectral_norm(nn.Linear(6, CLASSES))
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), last), features(), labels()


@animal("categorical", CLASSES, laplace=PARAMETRISED, no_reset=("weight_g", "weight_v"))
def weight_norm_by_hooks() -> tuple:
    """The old way: the weight is a plain attribute that a hook sets before each forward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(FEATURES, CLASSES)), features(), labels()


@animal("gaussian", laplace=NO_LINEAR, no_reset=("a", "b", "scale", "shift.0"))
def bare_parameters() -> tuple:
    """Two weights with one gradient, a scalar, a list, and a product whose gradient comes transposed."""
    net = Does(
        lambda m, x: (x @ (m.a + m.b).T * m.scale + m.shift[0]).sum(1),
        a=nn.Parameter(torch.randn(2, FEATURES)),
        b=nn.Parameter(torch.randn(2, FEATURES)),
        scale=nn.Parameter(torch.tensor(1.0)),
        shift=nn.ParameterList([torch.zeros(2)]),
    )
    return net, features(), values()


@animal("categorical", CLASSES)
def double_precision() -> tuple:
    net = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    return net, features().double(), labels()


@animal("categorical", CLASSES)
def bfloat16() -> tuple:
    net = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)).bfloat16()
    return net, features().bfloat16(), labels()


@animal("categorical", CLASSES)
def sparse_embedding() -> tuple:
    parts = {"embed": nn.EmbeddingBag(VOCABULARY, FEATURES, sparse=True), "head": nn.Linear(FEATURES, CLASSES)}
    return Does(lambda m, x: m.head(m.embed(x)), **parts), words(), labels()


@animal("categorical", CLASSES)
def embedding_with_max_norm() -> tuple:
    parts = {"embed": nn.EmbeddingBag(VOCABULARY, FEATURES, max_norm=1.0), "head": nn.Linear(FEATURES, CLASSES)}
    return Does(lambda m, x: m.head(m.embed(x)), **parts), words(), labels()


# --- state -------------------------------------------------------------------------------------------------------------


@animal("categorical", CLASSES)
def batch_norm_1d() -> tuple:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)), features(), labels()


@animal("categorical", CLASSES)
def batch_norm_2d() -> tuple:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 6, CLASSES))
    return net, images(), labels()


@animal("categorical", CLASSES)
def dropout_module() -> tuple:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES)), features(), labels()


@animal("categorical", CLASSES)
def dropout_functional() -> tuple:
    parts = {"into": nn.Linear(FEATURES, 6), "head": nn.Linear(6, CLASSES)}
    net = Does(lambda m, x: m.head(F.dropout(m.into(x), 0.5, training=m.training)), **parts)
    return net, features(), labels()


@animal("categorical", CLASSES)
def noise_in_every_mode() -> tuple:
    """Draws from torch's and Python's global generators, in evaluation too."""
    parts = {"into": nn.Linear(FEATURES, 6), "head": nn.Linear(6, CLASSES)}
    net = Does(lambda m, x: m.head(F.dropout(m.into(x), 0.5) * python_random.uniform(0.9, 1.1)), **parts)
    return net, features(), labels()


def _in_place(m: nn.Module, x: Tensor) -> Tensor:
    x -= 0.5  # the caller's own memory
    out = torch.zeros(len(x), 6)
    out += m.into(x)
    out[..., :2] *= 2.0
    return m.head(out.relu_()).mul_(0.5)


@animal("categorical", CLASSES)
def in_place() -> tuple:
    return Does(_in_place, into=nn.Linear(FEATURES, 6), head=nn.Linear(6, CLASSES)), features(), labels()


def _branches(m: nn.Module, x: Tensor) -> Tensor:
    h = m.large(x) if x.sum() > 0 else m.small(x)
    for _ in range(int(h.abs().sum()) % 3):
        h = torch.tanh(h)
    return m.head(h)


@animal("categorical", CLASSES)
def control_flow() -> tuple:
    """Each branch is taken by some batches only: with 4 of these rows a batch, the sum of one changes sign."""
    parts = {"large": nn.Linear(FEATURES, 6), "small": nn.Linear(FEATURES, 6), "head": nn.Linear(6, CLASSES)}
    x = torch.full((ROWS, FEATURES), 0.1)
    x[-1] = -2.0
    return Does(_branches, **parts), x + 0.01 * features(), labels()


def _remembers(m: nn.Module, x: Tensor) -> Tensor:
    m.hidden = m.into(x)  # with its graph
    m.seen.append(m.hidden.detach())
    m.book["means"].append(float(x.mean()))
    m.tally += 1
    m.fresh = len(m.seen)
    m.late = x.new_ones(())
    m.calls += 1
    m.ema.data.mul_(0.9)
    return m.head(m.hidden) * m.late + 0.0 * m.ema


@animal("categorical", CLASSES)
def remembers() -> tuple:
    """Attributes set and appended to, a nested dict, an array, a buffer that appears, and two that change in all modes."""
    parts = {"into": nn.Linear(FEATURES, 6), "head": nn.Linear(6, CLASSES)}
    net = Does(_remembers, **parts, calls=torch.tensor(0), ema=torch.tensor(1.0))
    net.register_buffer("late", None)
    net.hidden, net.seen, net.book, net.tally = None, [], {"means": []}, torch.zeros(2).numpy()
    return net, features(), labels()


@animal("categorical", CLASSES)
def cached_non_leaf() -> tuple:
    """Neither deepcopy nor pickle takes it."""
    net = Does(lambda m, x: m.head(x), head=nn.Linear(FEATURES, CLASSES))
    net.cached = net.head.weight * 2
    net.head.register_forward_hook(lambda module, args, output: None)
    return net, features(), labels()


@animal("categorical", CLASSES)
def checkpointed() -> tuple:
    """The backward pass runs the first layers again."""
    parts = {
        "trunk": nn.Sequential(nn.Linear(FEATURES, 6), nn.Dropout(0.1), nn.Tanh()),
        "head": nn.Linear(6, CLASSES),
    }
    return Does(lambda m, x: m.head(checkpoint(m.trunk, x, use_reentrant=False)), **parts), features(), labels()


# --- inputs and outputs ------------------------------------------------------------------------------------------------


@animal("categorical", CLASSES)
def dict_whole() -> tuple:
    net = Does(lambda m, parts: m.head(parts["a"] * parts["b"]), head=nn.Linear(FEATURES, CLASSES))
    return net, {"a": features(), "b": features()}, labels()


class _ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(a * b)


@animal("categorical", CLASSES)
def dict_by_name() -> tuple:
    return _ByName(), {"b": features(), "a": features()}, labels()


@animal("categorical", CLASSES, laplace=NO_LINEAR)
def several_inputs() -> tuple:
    return nn.Bilinear(FEATURES, 2, CLASSES), (features(), torch.randn(ROWS, 2)), labels()


def _heads() -> dict[str, nn.Module]:
    return {"trunk": nn.Linear(FEATURES, 6), "one": nn.Linear(6, CLASSES), "two": nn.Linear(6, 2)}


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


_IDLE_TWO = ("two.bias", "two.weight")


@animal("categorical", CLASSES, output=0, idle=_IDLE_TWO)
def output_by_index() -> tuple:
    return Does(lambda m, x: (m.one(h := m.trunk(x)), m.two(h)), **_heads()), features(), labels()


@animal("categorical", CLASSES, output="one", idle=_IDLE_TWO)
def output_by_key() -> tuple:
    return Does(lambda m, x: {"one": m.one(h := m.trunk(x)), "two": m.two(h)}, **_heads()), features(), labels()


@animal("categorical", CLASSES, output="first", idle=_IDLE_TWO)
def output_by_attribute() -> tuple:
    return Does(lambda m, x: Pair(m.one(h := m.trunk(x)), m.two(h)), **_heads()), features(), labels()


@animal("categorical", CLASSES, output=lambda outputs: outputs[0] + outputs[1].sum(-1, keepdim=True))
def output_by_function() -> tuple:
    return Does(lambda m, x: (m.two(h := m.trunk(x)), m.one(h))[::-1], **_heads()), features(), labels()


@animal("heteroscedastic")
def pair_from_one_linear() -> tuple:
    net = Does(lambda m, x: m.head(x).unbind(-1), head=nn.Linear(FEATURES, 2))
    return net, features(), values()


@animal("heteroscedastic", laplace=NOT_ALL)
def pair_from_two_linears() -> tuple:
    parts = {"mean": nn.Linear(FEATURES, 1), "log_std": nn.Linear(FEATURES, 1)}
    return Does(lambda m, x: (m.mean(x)[:, 0], m.log_std(x)[:, 0]), **parts), features(), values()


@animal("heteroscedastic", 2, laplace=NOT_ALL)
def joined_from_two_linears() -> tuple:
    parts = {"mean": nn.Linear(FEATURES, 2), "log_std": nn.Linear(FEATURES, 2)}
    return Does(lambda m, x: torch.cat([m.mean(x), m.log_std(x)], 1), **parts), features(), torch.randn(ROWS, 2)


@animal("categorical", CLASSES)
def tokens_pooled() -> tuple:
    return Does(lambda m, x: m.head(x).max(1).values, head=nn.Linear(FEATURES, CLASSES)), sequences(), labels()


@animal("categorical", CLASSES)
def tokens_flattened() -> tuple:
    net = Does(
        lambda m, x: m.head(x.flatten(0, 1)).unflatten(0, (-1, TOKENS)).mean(1), head=nn.Linear(FEATURES, CLASSES)
    )
    return net, sequences(), labels()


@animal("categorical", CLASSES)
def head_called_twice() -> tuple:
    net = Does(lambda m, x: m.head(x[:, 0]) - m.head(x[:, 1]).relu(), head=nn.Linear(FEATURES, CLASSES))
    return net, sequences(), labels()


@animal("gaussian", FEATURES)
def head_fed_back() -> tuple:
    net = Does(lambda m, x: m.step(torch.tanh(m.step(torch.tanh(m.step(x))))), step=nn.Linear(FEATURES, FEATURES))
    return net, features(), features()


@animal("categorical", CLASSES, laplace=MIXED)
def rows_mixed() -> tuple:
    """Predictions depend on the batch: no error where nothing needs rows apart."""
    net = Does(lambda m, x: (h := m.head(x)) - h.mean(0), head=nn.Linear(FEATURES, CLASSES))
    return net, features(), labels()


# --- likelihoods -------------------------------------------------------------------------------------------------------


@animal("bernoulli", 2)
def bernoulli() -> tuple:
    return nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0)), features(), torch.arange(ROWS) % 2


@animal("multilabel", 5)
def multilabel() -> tuple:
    return nn.Linear(FEATURES, 5), features(), torch.randint(0, 2, (ROWS, 5))


@animal("poisson")
def poisson() -> tuple:
    return nn.Linear(FEATURES, 1), features(), torch.arange(ROWS)


@animal("student-t", 2)
def student_t() -> tuple:
    return nn.Linear(FEATURES, 2), features(), torch.randn(ROWS, 2)


@animal("heteroscedastic", 2)
def heteroscedastic() -> tuple:
    return nn.Linear(FEATURES, 4), features(), torch.randn(ROWS, 2)


@animal("heteroscedastic", TOKENS, 1)
def heteroscedastic_sequence() -> tuple:
    return nn.Linear(FEATURES, 2), sequences(), torch.randn(ROWS, TOKENS, 1)
