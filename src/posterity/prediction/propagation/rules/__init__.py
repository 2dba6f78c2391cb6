"""The rules, by kind of operation; importing this module fills the table."""

from posterity.prediction.propagation.rules import (
    activation,
    arithmetic,
    attention,
    heads,
    linear,
    norm,
    pool,
    recurrent,
    resize,
    shape,
)

__all__ = ["activation", "arithmetic", "attention", "heads", "linear", "norm", "pool", "recurrent", "resize", "shape"]
