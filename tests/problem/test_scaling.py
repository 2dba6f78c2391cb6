"""Scaling is affine algebra: locations move and stretch, spreads only stretch."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from posterity.errors import DataError, PosterityWarning, ShapeError
from posterity.problem.scaling import Scaling


def targets(rows: int = 101, outputs: int = 3) -> torch.Tensor:
    return torch.randn(rows, outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_mean_and_population_std_of_a_stream_are_those_of_the_whole() -> None:
    y = targets() * torch.tensor([1.0, 1e-3, 1e3]) + torch.tensor([0.0, 5.0, -1e6])
    scaling = Scaling.of([y[:1], y[1:8], y[8:8], y[8:]])
    # float64: the mean to a few ulp, the std to the cancellation of an offset of 1e3 stds
    torch.testing.assert_close(scaling.mean, y.mean(0), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(scaling.std, y.std(0, correction=0), rtol=1e-12, atol=0)


def test_a_large_offset_does_not_hide_the_spread() -> None:
    y = targets(1009, 1)
    far = Scaling.of((y + 1e9).split(97))
    # y + 1e9 is stored to 1e9 * 2^-53 = 1e-7: the std is right to that, not to 1e9 squared times it
    torch.testing.assert_close(far.std, Scaling.of([y]).std, rtol=1e-6, atol=0)


@given(a=st.floats(1e-6, 1e6) | st.floats(-1e6, -1e-6), b=st.floats(-1e3, 1e3))
@settings(max_examples=50, deadline=None)
def test_affine_equivariance(a: float, b: float) -> None:
    y = targets()
    plain, moved = Scaling.of([y]), Scaling.of([a * y + b * abs(a)])
    # a y + b |a| rounds to 1e3 |a| 2^-53 = 1e-13 |a|
    torch.testing.assert_close(moved.std, abs(a) * plain.std, rtol=1e-12, atol=0)
    torch.testing.assert_close(moved.mean, a * plain.mean + b * abs(a), rtol=1e-12, atol=1e-12 * abs(a))
    z = torch.linspace(-3, 3, 11, dtype=torch.float64)[:, None].expand(11, 3)
    torch.testing.assert_close(moved.scale(z), abs(a) * plain.scale(z), rtol=1e-12, atol=0)


def test_powers_of_two_scale_exactly() -> None:
    y = targets()
    assert Scaling.of([-4 * y]).std.equal(4 * Scaling.of([y]).std)


def test_a_std_is_stretched_and_never_moved() -> None:
    scaling = Scaling(torch.tensor([1000.0]), torch.tensor([10.0]))
    assert scaling.scale(torch.tensor([1.0, 0.5])).tolist() == [10.0, 5.0]
    assert scaling.location(torch.tensor([1.0, 0.5])).tolist() == [1010.0, 1005.0]
    assert scaling.standardize(torch.tensor([1010, 990])).tolist() == [1.0, -1.0]
    assert scaling.log_volume == pytest.approx(np.log(10.0), rel=1e-15)


def test_standardising_happens_in_float64() -> None:
    scaling = Scaling(torch.tensor([1e9], dtype=torch.float64), torch.tensor([1.0]))
    assert scaling.standardize(torch.tensor([1e9 + 0.5], dtype=torch.float64)).item() == 0.5


def test_rows_and_rows_by_one_are_one_output() -> None:
    y = targets(7, 1)
    assert Scaling.of([y]) == Scaling.of([y[:, 0]]) == Scaling.of([y[:, 0].tolist()])
    assert Scaling.of([y]).mean.shape == (1,)
    assert Scaling.of([y]).standardize(y[:, 0]).shape == (7,)


def test_a_constant_output_is_named_and_keeps_its_units() -> None:
    y = targets()
    y[:, 1] = 0.1  # no binary fraction: the mean of 101 of them is off by rounding
    with pytest.warns(PosterityWarning, match=r"output 1 of the targets is constant over 101 rows"):
        scaling = Scaling.of(y.split(7))
    assert scaling.std[1] == 1.0
    assert scaling.std[0] != 1.0


def test_a_small_spread_is_not_a_constant() -> None:
    y = 1e-6 * targets()
    torch.testing.assert_close(Scaling.of([y]).std, y.std(0, correction=0), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        ([], DataError, "0 rows"),
        ([torch.zeros(0)], DataError, "0 rows"),
        ([torch.zeros(3), torch.tensor([0.0, torch.nan])], DataError, r"\(rows 4\)"),
        ([torch.zeros(3, 2), torch.zeros(3)], ShapeError, r"\(1,\).*\(2,\)"),
        ([["a", "b"]], DataError, "strings"),
    ],
)
def test_streams_that_have_no_scale(batches: list, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Scaling.of(batches)


@pytest.mark.parametrize(
    ("mean", "std", "error"),
    [([0.0], [0.0], DataError), ([torch.inf], [1.0], DataError), ([0.0], [1.0, 1.0], ShapeError)],
)
def test_scalings_that_cannot_be(mean: list, std: list, error: type) -> None:
    with pytest.raises(error):
        Scaling(torch.tensor(mean), torch.tensor(std))


def test_values_of_other_outputs_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(7, 2\).*\(3,\)"):
        Scaling.identity(3).location(torch.zeros(7, 2))


def test_json_keeps_every_bit() -> None:
    scaling = Scaling.of([targets()])
    again = Scaling.from_json(json.loads(json.dumps(scaling.to_json())))
    assert again == scaling
    assert hash(again) == hash(scaling)
    assert again != Scaling.identity(3)
