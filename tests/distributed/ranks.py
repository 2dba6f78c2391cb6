"""What every rank of `torchrun` does for the tests beside this file: `torchrun ... ranks.py WORK OUT`.

Rank 0 writes what the checks found, by name, as JSON.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.contract.test_contract import CASES
from tests.distributed.checks import Check, Failing, run
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.group import Group
from posterity.inference.algorithm import Plan
from posterity.posterior.storage import load_checkpoint
from posterity.problem.batches import Batch, share
from posterity.testing.resume import all_draws
from posterity.testing.runs import network_problem
from posterity.testing.worlds import ROWS, Injected, batch_norm_network, inputs, labels, plain_network
from posterity.training.checkpoint import flatten

X, Y = inputs().double(), labels(inputs())


def network() -> nn.Module:
    return plain_network().double()


RESTARTS = [("mean-field", "rows"), ("deep-ensemble", "members"), ("sghmc", "members"), ("laplace-full", "rows")]


class Bilinear(nn.Module):
    """Of rows, and of a table that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.body(x + table.mean())


class Constant:
    """Batches of a table beside the rows."""

    def __iter__(self) -> Iterator[Any]:
        yield X, torch.zeros(2), Y

    def __len__(self) -> int:
        return 1


def fitted(
    name: str, distribute: str | None, three: bool = False, loader: Any = None, **options: Any
) -> po.BayesianModel:
    """A short run of a row of the contract's table; of three members where they are to be shared."""
    case = CASES[name]
    method = case.of(3) if three or distribute == "members" else case.algorithm
    data = DataLoader(loader or Failing(None, X, Y), batch_size=7, shuffle=True)
    options = {"epochs": 2, "side_by_side": "loop", **options}
    return po.fit(case.network(network()), data, method=method, distribute=distribute, **options)


def same(value: Tensor) -> Tensor:
    return value.clone()


def growth(precision: Tensor) -> Tensor:
    """u of a precision that grew from p to p (1 + u + u^2 / 2), for p = N h + d = 23 * 0.3 + 1."""
    return (2.0 * precision / (ROWS * 0.3 + 1.0) - 1.0).sqrt()


def furthest(one: po.BayesianModel, other: po.BayesianModel) -> float:
    """The largest difference of any number of the two posteriors' draws."""
    worst = 0.0
    for a, b in zip(all_draws(one.posterior), all_draws(other.posterior), strict=True):
        assert a.keys() == b.keys()
        worst = max([worst, *(float((a[name] - b[name]).abs().max()) for name in a)])
    return worst


def rows(group: Group, work: Path) -> dict[str, Any]:
    return {name: furthest(fitted(name, "rows"), fitted(name, None)) for name in CASES}


def members(group: Group, work: Path) -> dict[str, Any]:
    return {name: furthest(fitted(name, "members"), fitted(name, None, three=True)) for name in CASES}


def stopped(out: Path, distribute: str | None, name: str) -> None:
    """A run that fails on every rank in its third step and leaves a checkpoint in `out`."""
    own = len(Group.current().share(3)) if distribute == "members" else 3
    survey, step = ROWS, 7 * own
    try:
        fitted(name, distribute, out=out, checkpoint_every=1, loader=Failing(survey + 2 * step + 1, X, Y), three=True)
    except Injected:
        return
    raise AssertionError("the run was not stopped")


MANY = {
    "advi": po.ADVI(init_std=0.1), "fisher-vi": po.FisherVI(init_std=0.1), "advi-full": po.ADVI("full", draws=3),
    "score-vi-dense": po.ScoreVI("dense", draws=3), "score-vi-low-rank": po.ScoreVI("low-rank-plus-diagonal", draws=3),
    "score-vi-mixture": po.ScoreVI("mixture", components=3, draws=6), "bam": po.BaM(draws=3), "gsm": po.GSM(),
    "score-vi-flow": po.ScoreVI("flow", flow="realnvp", hidden=(5,), draws=3),
}  # fmt: skip
LINEAR: dict[str, tuple[Any, dict[str, Callable[[Tensor], Tensor]]]] = {
    "mean-field": (po.MeanFieldVI(), {"mean_first": same, "log_std_first": same}),
    "ivon": (po.IVON(), {"momentum": same, "precision": growth}),
    "score-vi": (po.ScoreVI(init_std=0.1), {"mean_first": same}),
    "score-vi, literal": (po.ScoreVI(init_std=0.1, update="literal"), {"mean_first": same, "std_first": same}),
    "low-rank": (po.LowRankVI({"*": 1}), {"mean_first": same, "log_std_first": same}),
    "rank-one": (po.RankOneVI(), {"first": same, "scale_first": same, "log_std_first": same}),
}


def many_draws(group: Group, work: Path) -> dict[str, Any]:
    """On rows that come twice, so that both ranks have the same, one draw a rank is two draws in one process."""
    loader = DataLoader(TensorDataset(X.repeat(2, 1), Y.repeat(2)), batch_size=2 * ROWS)
    found = {}
    for name, method in MANY.items():
        ours = po.fit(network(), loader, method=method, distribute="draws", steps=3, side_by_side="loop")
        twice = replace(method, draws=2 * method.draws)
        found[name] = furthest(ours, po.fit(network(), loader, method=twice, steps=3, side_by_side="loop"))
    return found


def own_draws(group: Group, work: Path) -> dict[str, Any]:
    """What is linear in a draw and its rows is, after a step together, the mean of what the ranks find alone."""
    found = {}
    rows = group.share(22)
    for name, (method, fields) in LINEAR.items():
        states = []
        for together in (True, False):
            problem = network_problem(network(), X, Y, "categorical")
            random, batch = po.Random(0), Batch(X[:22], Y[:22], rows=22)
            if together:
                problem.group = problem.drawing = group
            else:
                batch = share(batch, rows)
                random = random.fold("draw 1") if group.rank else random
            state = method.init(problem, problem.start(), po.Random(1), Plan(22, 10, 1))
            states.append(method.step(problem, state, [batch], random)[0])
        group.check_same(flatten(states[0]), "a state")
        worst = 0.0
        for field, linear in fields.items():
            ours, alone = ({n: linear(leaf) for n, leaf in getattr(state, field).items()} for state in states)
            group.mean_(list(alone.values()), torch.ones(1))
            worst = max([worst, *(float((ours[n] - alone[n]).abs().max()) for n in ours)])
        found[name] = worst
    return found


def evaluation(group: Group, work: Path) -> dict[str, Any]:
    """How far the figures of all ranks are from those of one process, and the rows that each of them counted."""
    model = fitted("mean-field", None)
    options: dict[str, Any] = {"batch_size": 4, "draws": 3, "ood": {"far": X + 9.0}, "validation": (X, Y)}
    one, all_of_us = po.evaluate(model, (X, Y), **options), po.evaluate(model, (X, Y), distribute=True, **options)
    metrics = [each.rows[0]["metrics"] for each in (one, all_of_us)]
    apart = [name for name, metric in metrics[0].items() if metric != metrics[1][name]]
    few = po.evaluate(model, (X, Y), distribute=True, batch_size=64)  # one batch: a rank has none
    return {"apart": apart, "n": metrics[1]["nll"].n, "of one batch": few.rows[0]["metrics"]["nll"].n}


def restarts(group: Group, work: Path) -> dict[str, Any]:
    """Runs that were stopped on one or two ranks and go on on two; what two ranks left is gone on with outside."""
    found = {}
    for name, distribute in RESTARTS:
        wanted = fitted(name, None, three=True)
        for before in (distribute, None):
            out = work / f"{name}-{distribute}-{before}"
            if before or group.rank == 0:
                stopped(out, before, name)
            group.wait()
            assert load_checkpoint(out)[1]["position"]["step"] == 2
            group.wait()
            again = fitted(name, distribute, three=True, out=out, resume=True)
            found[out.name] = furthest(again, wanted)
            found[f"{out.name}, loaded"] = furthest(po.load(out, network()), wanted)
        stopped(work / f"{name}-{distribute}-left", distribute, name)
    return found


def statistics(group: Group, work: Path) -> dict[str, Any]:
    """A network that normalises batches, of which the last has three rows: of one rank's a single one."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = po.fit(
            batch_norm_network().double(),
            (X[:17], Y[:17]),
            distribute="rows",
            batch_size=7,
            epochs=2,
            validation=(X, Y),
        )
    draw = all_draws(model.posterior)[0]
    group.check_same(draw, "the posterior")
    return {
        "warned": [str(one.message) for one in told if issubclass(one.category, po.PosterityWarning)],
        "left out": model.history[0]["left_out"],
        "moved": float(draw["buffer.1.running_mean"].abs().max()),
    }


def words(group: Group, work: Path) -> dict[str, str]:
    """What a person is told who asks for what cannot be."""
    asked: dict[str, Callable[[], Any]] = {
        "a word": lambda: fitted("map", "columns"),
        "draws": lambda: fitted("map", "draws"),
        "members": lambda: po.fit(network(), (X, Y), method=po.MAP(), distribute="members", epochs=1),
        "given": lambda: po.evaluate(torch.full((len(X), 5), 0.2), Y, distribute=True),
        "inputs": lambda: po.fit(Bilinear().double(), Constant(), distribute="rows", epochs=1, data_size=ROWS),
        "states": lambda: group.check_same({"a": torch.zeros(2), "b": torch.tensor([group.rank])}, "a state"),
    }
    found = {}
    for name, call in asked.items():
        try:
            call()
        except po.PosterityError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


CHECKS: dict[str, Check] = {
    "rows": rows, "members": members, "many draws": many_draws, "own draws": own_draws, "evaluation": evaluation,
    "restarts": restarts, "statistics": statistics, "words": words,
}  # fmt: skip


if __name__ == "__main__":
    run(CHECKS, "ignore")
