"""The methods by the names that people type, with hyperparameters that suit tables.

Adding a method to the command line is one row here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

import posterity as po
from posterity.errors import CompatibilityError

__all__ = ["DEFAULT", "DROPOUT", "METHODS", "hint", "method_named"]

DROPOUT = 0.05  # of a preset network under mc-dropout
DEFAULT = "deep-ensemble"  # where no method is asked for

_MAP = po.MAP(learning_rate=po.Cosine(5e-3))

METHODS: Mapping[str, Callable[[], po.Algorithm]] = {
    "map": lambda: _MAP,
    "deep-ensemble": lambda: po.Ensemble(_MAP, 5),
    "mean-field": lambda: po.MeanFieldVI(learning_rate=po.Cosine(1e-2)),
    "ivon": lambda: po.IVON(learning_rate=po.Cosine(0.3), init_hessian=1.0, clip=0.03),
    "score-vi": lambda: po.ScoreVI(),
    "score-vi-dense": lambda: po.ScoreVI("dense"),
    "score-vi-low-rank": lambda: po.ScoreVI("low-rank-plus-diagonal"),
    "score-vi-mixture": lambda: po.ScoreVI("mixture"),
    "score-vi-flow": lambda: po.ScoreVI("flow", over="last-layer", base=_MAP),
    "advi": lambda: po.ADVI(),
    "advi-full": lambda: po.ADVI("full"),
    "gsm": lambda: po.GSM(),
    "bam": lambda: po.BaM(),
    "fisher-vi": lambda: po.FisherVI(),
    "laplace": lambda: po.LastLayerLaplace(base=_MAP),
    "optimizer-laplace": lambda: po.OptimizerLaplace(base=_MAP),
    "low-rank": lambda: po.LowRankVI(learning_rate=po.Cosine(5e-3)),
    "swag": lambda: po.SWAG(base=_MAP),
    "rank-one": lambda: po.RankOneVI(),
    "mc-dropout": lambda: po.MCDropout(learning_rate=po.Cosine(5e-3)),
    "sghmc": lambda: po.SGHMC(ensemble=_MAP),
    "sgld": lambda: po.SGLD(ensemble=_MAP),
}


def method_named(name: str) -> po.Algorithm:
    """The method of that name. Raises CompatibilityError with the names there are."""
    if name not in METHODS:
        raise CompatibilityError(f"no method is called {name!r}: {hint(name, METHODS)}There are {', '.join(METHODS)}")
    return METHODS[name]()


def hint(name: str, known: Iterable[str]) -> str:
    """A question after the known name that is most like `name`, or nothing.

    >>> hint("ivo", METHODS), hint("x", METHODS)
    ('did you mean ivon? ', '')
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]}? " if near else ""
