"""What is known before the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.problem.batches import Reader
from posterity.problem.data import Source, source
from posterity.problem.likelihoods import likelihood_from
from posterity.random import Random
from posterity.testing.worlds import Augmented, Fuse, inputs, labels
from posterity.training.survey import survey

X = inputs()
Y = labels(X)


def surveyed(data: Any, likelihood: Any, data_size: int | None = None, **options: Any) -> Any:
    stream = source(data, Reader(), "training", **options)
    return survey(stream, likelihood_from(likelihood), data_size, Random(0))


def test_classes_and_n_from_one_pass() -> None:
    fuse = Fuse()
    data = DataLoader(Augmented(X, Y * 10, fuse), batch_size=7, shuffle=True)
    found = surveyed(data, "categorical")
    assert found.likelihood.classes == (0, 10, 20, 30, 40)
    assert (found.data_size, found.rows, found.batch_size, found.batches) == (23, 23, 7, 4)
    assert fuse.count == 23, "the survey reads every row once"
    assert found.first.rows == 7


def test_the_scale_of_the_targets() -> None:
    y = 100.0 + 7.0 * X[:, :2]
    found = surveyed((X, y), "gaussian", batch_size=5, shuffle=True)
    torch.testing.assert_close(found.likelihood.scaling.mean, y.double().mean(0))
    torch.testing.assert_close(found.likelihood.scaling.std, y.double().std(0, correction=0))


def test_nothing_is_read_twice_where_nothing_is_to_be_learned() -> None:
    fuse = Fuse()
    likelihood = po.Categorical(classes=(0, 1, 2, 3, 4))
    found = surveyed(DataLoader(Augmented(X, Y, fuse), batch_size=7, drop_last=True), likelihood)
    assert (found.data_size, found.batches) == (21, 3)
    assert fuse.count == 7, "only the first batch is read"


def test_n_can_be_given() -> None:
    found = surveyed((X, Y), "categorical", 1000, batch_size=7)
    assert (found.data_size, found.rows, found.batches) == (1000, 23, 4)


@pytest.mark.parametrize("rows", [23, 50])
def test_without_a_length_n_must_be_given(rows: int) -> None:
    def stream() -> Any:
        for start in range(0, 23, 7):
            yield X[start : start + 7], Y[start : start + 7]

    class Endless:
        def __iter__(self) -> Any:
            return stream()

    found = survey(Source(Endless(), Reader(), "training"), likelihood_from("categorical"), rows, Random(0))
    assert (found.data_size, found.batch_size, found.batches) == (rows, 7, 4)
    with pytest.raises(po.DataError, match="give data_size="):
        survey(Source(Endless(), Reader(), "training"), likelihood_from("categorical"), None, Random(0))


def test_weights_do_not_count_in_n() -> None:
    model = po.fit(torch.nn.Linear(3, 5), (X, Y), sample_weight=torch.full((23,), 2.0), epochs=1)
    assert model.problem.data_size == 23


def test_an_epoch_unlike_the_survey_is_an_error() -> None:
    class Shrinking:
        """One batch fewer in each epoch; the survey sees the first."""

        epochs = 0

        def __iter__(self) -> Any:
            self.epochs += 1
            return iter(list(DataLoader(TensorDataset(X, Y), batch_size=7))[self.epochs - 1 :])

        def __len__(self) -> int:
            return 4

    with pytest.raises(po.DataError, match="the survey counted 23 training rows per epoch and the first epoch gave"):
        po.fit(torch.nn.Linear(3, 5), Shrinking(), epochs=1)
