"""What every rank of `torchrun` does for `test_shards_of_weights.py`: `torchrun ... sharded_ranks.py WORK OUT`.

Rank 0 writes what the checks found, by name, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tests.distributed.checks import Check, Failing, run
from tests.distributed.ranks import furthest
from torch import Tensor, nn
from torch.utils.data import DataLoader

import posterity as po
from posterity.group import Group
from posterity.posterior.storage import load_checkpoint
from posterity.problem.sharded import ShardedProblem
from posterity.random import Random
from posterity.testing.resume import all_draws
from posterity.testing.worlds import Injected
from posterity.training import by_shards
from posterity.tree import Tree, clone, member

ROWS, WORDS, WIDTH, CLASSES = 22, 11, 6, 5  # batches of 7, and one row that a rank is without
TOKENS = torch.randint(0, WORDS, (ROWS, 4), generator=torch.Generator().manual_seed(0))
LABELS = TOKENS.sum(1) % CLASSES
SERIES = torch.randn(ROWS, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
NOISY = {"mean-field": po.MeanFieldVI(), "ivon": po.IVON(), "score-vi": po.ScoreVI(), "advi": po.ADVI(draws=2)}


class Transformer(nn.Module):
    """A stack of two blocks, with tensors of a row, and weights that no forward reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 10, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1)) * self.scale


class Tied(nn.Module):
    """An embedding that is the last layer too, a frozen tensor, a buffer that a forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.norm.weight.requires_grad_(False)
        self.last = nn.Linear(WIDTH, WORDS, bias=False)
        self.last.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = self.embedding(x).mean(1)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * out.detach().mean(0)
        for block in self.blocks:
            out = out + block(out)
        return self.last(self.norm(out))


class Recurrent(nn.Module):
    """An LSTM before two outputs: the likelihood has stds of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


class Uncalled(nn.Module):
    """Uses the weights of its blocks without calling them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return sum(x @ block[0].weight for block in self.blocks)  # type: ignore[index, misc, return-value]


def built(kind: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind().to(dtype)


def fitted(
    distribute: str | None,
    method: Any = None,
    data: Any = None,
    kind: Callable[[], nn.Module] = Transformer,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> po.BayesianModel:
    """Two epochs, unless told."""
    data = (TOKENS, LABELS) if data is None else data
    batch_size = None if isinstance(data, DataLoader) else 7
    options = {"epochs": 2, "batch_size": batch_size, "distribute": distribute, **options}
    return po.fit(built(kind, dtype), data, method=method, **options)


def apart(one: po.BayesianModel, other: po.BayesianModel) -> float:
    """The largest difference of any weight but the keys' biases: softmax is blind to them, and Adam divides their gradient,
    which is rounding, by itself."""
    for model in (one, other):
        for draw in all_draws(model.posterior):
            for name, leaf in draw.items():
                if name.endswith("in_proj_bias"):
                    leaf[WIDTH : 2 * WIDTH] = 0.0
    return furthest(one, other)


def equal(group: Group, work: Path) -> dict[str, float]:
    """Point estimates of all ranks, and of one process."""
    pairs = (TOKENS, TOKENS[:, 0])
    series = (SERIES, SERIES.sum((1, 2))[:, None].repeat(1, 2))
    tied: dict[str, Any] = {"kind": Tied, "data": pairs, "prior": po.Normal(0.1, center="start")}
    runs: dict[str, dict[str, Any]] = {
        "float32": {"dtype": torch.float32},
        "float64": {"validation": (TOKENS[:9], LABELS[:9])},
        "accumulated, clipped": {"accumulation": 2, "clip": 0.3},
        "tied": tied,
        "tied, from a start": {**tied, "start": built(Tied, torch.float64).state_dict()},
        "recurrent": {"kind": Recurrent, "data": series, "likelihood": "gaussian"},
    }
    return {name: apart(fitted("shards", **options), fitted(None, **options)) for name, options in runs.items()}


class Watched(ShardedProblem):
    """Keeps what every step of the last problem was asked and told."""

    last: Watched

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps: list[tuple[Tree, Any, Tree]] = []
        Watched.last = self

    def nlls(self, thetas: Tree, batches: Any, randoms: Any) -> Any:
        found = super().nlls(thetas, batches, randoms)
        self.steps.append((clone(thetas), batches[0], clone(found[1])))
        return found


def noisy(group: Group, work: Path) -> dict[str, Any]:
    """How far gradients at draws of weights are from those of one process there, and how alike the ranks' noise is."""
    found, one = {}, "encoder.layers.0.linear1.weight"
    for dtype in (torch.float32, torch.float64):
        for name, method in NOISY.items():
            with patch.object(by_shards, "ShardedProblem", Watched):
                whole = fitted("shards", method, dtype=dtype, epochs=1).problem
            cut, worst = Watched.last.cut, 0.0
            for thetas, batch, gradient in Watched.last.steps:
                _, wanted, _ = whole.nll(member(cut.whole(thetas, axis=1), 0), batch, Random(0))
                own = cut.own(wanted)
                worst = max([worst, *(float((own[n] - gradient[n][0]).abs().max()) for n in own if own[n].numel())])
            found[f"{name}, {dtype}"] = max(group.every(worst))
            noise = Watched.last.steps[0][0][one][0] - Watched.last.start()[one]
            alike = torch.corrcoef(torch.stack(group.every(noise.flatten().double())))
            found[f"{name}, {dtype}, noise"] = float(alike[0, 1].abs())
    return found


def stopped(out: Path, distribute: str | None, method: Any) -> None:
    """A run that fails on every rank in its third step and leaves a checkpoint in `out`."""
    survey, probe, step = ROWS, ROWS, 7  # the probe reads on for what reaches the unused weights
    data = DataLoader(Failing(survey + probe + 2 * step + 1, TOKENS, LABELS), batch_size=7)
    try:
        fitted(distribute, method, data, out=out, checkpoint_every=1)
    except Injected:
        return
    raise AssertionError("the run was not stopped")


def restarts(group: Group, work: Path) -> dict[str, float]:
    """Runs that were stopped on one or two ranks and go on on two; on one, what two left."""
    found = {}
    data = DataLoader(Failing(None, TOKENS, LABELS), batch_size=7)
    methods = {"map": po.MAP(), "mean-field": po.MeanFieldVI()}
    for name, before, after in [
        ("map", "shards", "shards"), ("map", None, "shards"), ("map", "shards", None), ("mean-field", "shards", "shards"),
    ]:  # fmt: skip
        wanted = fitted(None if name == "map" else "shards", methods[name], data)
        out = work / f"{name}-{before}-{after}"
        if before or group.rank == 0:
            stopped(out, before, methods[name])
        group.wait()
        assert load_checkpoint(out)[1]["position"]["step"] == 2
        group.wait()
        if after or group.rank == 0:
            again = fitted(after, methods[name], data, out=out, resume=True)
            found[out.name] = apart(again, wanted)
            found[f"{out.name}, loaded"] = apart(po.load(out, built(Transformer, torch.float64)), wanted)
        group.wait()
    return found


def watched(group: Group, work: Path) -> dict[str, Any]:
    """The KL and the std in the history of a run, and those of its posterior."""
    model = fitted("shards", po.MeanFieldVI(), kind=Tied, data=(TOKENS, TOKENS[:, 0]))
    posterior = model.posterior
    stds = torch.cat([std.flatten() for std in posterior.stds.values()])  # type: ignore[attr-defined]
    row = model.history[-1]
    return {
        "kl": row["kl"] / posterior.divergence(model.problem.prior),
        "std": row["std"] / float(stds.log().mean().exp()),
    }


def untouched(group: Group, work: Path) -> list[str]:
    """What of a module is not as it was before it was fitted."""
    module = built(Tied, torch.float64)
    before = {name: (tensor, tensor.clone()) for name, tensor in module.state_dict(keep_vars=True).items()}
    kinds = [type(part) for part in module.modules()]
    po.fit(module, (TOKENS, TOKENS[:, 0]), batch_size=7, epochs=1, distribute="shards")
    now = module.state_dict(keep_vars=True)
    changed = [
        name for name, (tensor, value) in before.items() if now[name] is not tensor or not now[name].equal(value)
    ]
    hooks = [name for name, part in module.named_modules() if part._forward_pre_hooks or part._forward_hooks]
    return changed + hooks + [str(a) for a, b in zip(kinds, map(type, module.modules())) if a is not b]


def words(group: Group, work: Path) -> dict[str, str]:
    """What a person is told who asks for what cannot be."""
    rows, positive = (torch.ones(9, 3), torch.arange(9) % CLASSES), (torch.ones(9, 3), torch.arange(9.0)[:, None])

    def fits(network: nn.Module, data: Any = rows, *likelihood: str) -> Callable[[], Any]:
        return lambda: po.fit(network, data, *likelihood, distribute="shards", epochs=1)

    scalar, other = nn.Linear(3, CLASSES), nn.Linear(3, CLASSES)
    scalar.level = nn.Parameter(torch.tensor(0.5))
    nn.init.constant_(other.bias, group.rank)
    asked: dict[str, Callable[[], Any]] = {
        "members": lambda: fitted("shards", po.MAP(members=2)),
        "method": lambda: fitted("shards", po.SWAG()),
        "family": lambda: fitted("shards", po.ScoreVI("dense")),
        "path": lambda: fitted("shards", side_by_side="vmap"),
        "scalar": fits(scalar),
        "types": fits(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, CLASSES).double())),
        "uncalled": fits(built(Uncalled, torch.float32)),
        "weights": fits(other),
        "ranks": fits(built(lambda: nn.Linear(3, 1), torch.float32), positive, "gaussian"),
    }
    found = {}
    for name, call in asked.items():
        try:
            call()
        except po.PosterityError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


CHECKS: dict[str, Check] = {
    "equal": equal, "noisy": noisy, "restarts": restarts, "watched": watched, "untouched": untouched, "words": words,
}  # fmt: skip


if __name__ == "__main__":
    run(CHECKS, "error")
