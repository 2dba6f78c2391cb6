"""Air and sentences as the benches of low-rank networks read them, and the networks that read them."""

import os

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.bench import air, low_rank_text, text

needs_data = pytest.mark.skipif("POSTERITY_DATA" not in os.environ, reason="POSTERITY_DATA is not set")


def test_the_reader_does_not_see_padding() -> None:
    torch.manual_seed(0)
    net = low_rank_text.Reader(31, 11, width=8).eval()
    x = torch.tensor([[5, 7, 9], [2, 3, 0]])
    longer = torch.cat([x, torch.zeros(2, 6, dtype=torch.long)], 1)
    torch.testing.assert_close(net(longer), net(x), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(net(x)[1], net(torch.tensor([[2, 3, 4]]))[0])


def test_rows_by_length_come_back_in_their_order() -> None:
    lengths: list[tuple[int, int]] = []

    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            lengths.append(tuple(x.shape))  # type: ignore[arg-type]
            return torch.stack([x.sum(1), -x.sum(1)], 1) * self.scale

    x = torch.zeros(13, 9, dtype=torch.long)
    for row in range(13):
        x[row, : 1 + row * 5 % 9] = row + 2
    model = po.fit(Echo(), (x, torch.arange(13) % 2), method=po.MAP(learning_rate=1e-9), epochs=1, progress=False)
    lengths.clear()
    pred = low_rank_text.by_length(lambda x: model.predict(x, via="mean"))(x)
    assert len(lengths) == 5  # 13 rows in parts of three
    assert [width for _, width in lengths] == sorted({width for _, width in lengths})
    torch.testing.assert_close(pred.log_probs, model.predict(x, via="mean").log_probs)  # type: ignore[attr-defined]


def test_gaps_and_ends_of_windows() -> None:
    hours = air.HOURS
    z = np.zeros((4 * hours, 2))
    y = np.ones(4 * hours)
    inside = np.ones(4 * hours, bool)
    assert air._ends(z, y, inside).tolist() == list(range(hours, 4 * hours))
    z[hours + 3, 1] = np.nan  # an hour that no window may hold
    y[3 * hours] = np.nan  # an hour that is no target, but may be in a window
    found = set(air._ends(z, y, inside).tolist())
    assert found == (set(range(hours, hours + 4)) | set(range(2 * hours + 4, 4 * hours))) - {3 * hours}
    inside[: 2 * hours + 9] = False
    assert air._ends(z, y, inside).tolist() == list(range(3 * hours + 9, 4 * hours))


@needs_data
def test_windows_of_the_city_and_of_the_country() -> None:
    sizes = air.Sizes(37, 23, 19, 13)
    one, other = air.air(0, sizes), air.air(1, sizes)
    shapes = [x.shape for x, _ in (one.train, one.validation, one.test, *one.foreign.values())]
    assert shapes == [(n, air.HOURS, 17) for n in (37, 23, 19, 13, 13)]
    assert all(torch.isfinite(x).all() for x, _ in (one.train, one.validation, one.test, *one.foreign.values()))
    assert torch.equal(one.test[0], other.test[0])
    assert not torch.equal(one.train[0], other.train[0])
    stations, x, y, _ = air._stations()
    assert set(stations) == {*air.CITY, *air.COUNTRY}
    # PM2.5 is the first input: that of the hour after a window is its target, in standardised units
    whole = air.air(0, air.Sizes(30000, 1, 1, 1))
    assert abs(float(whole.train[0][:, -1, 0].mean())) < 0.03  # 23000 of the hours that were standardised
    follows = np.corrcoef(whole.train[0][:, -1, 0].numpy(), whole.train[1].numpy())[0, 1]
    assert follows > 0.95  # an hour changes little


@needs_data
def test_sentences_have_numbers() -> None:
    data = text.sentences()
    sizes = [tuple(x.shape) for x, _ in (data.train, data.validation, data.test)]
    assert sizes == [(n, text.LENGTH) for n in (6920, 872, 1821)]
    assert int(data.train[0].max()) == data.vocabulary - 1
    unknown = {name: (x == text.UNKNOWN).sum() / (x != text.PADDING).sum() for name, x in data.foreign.items()}
    assert all(0.1 < share < 0.6 for share in unknown.values())
    assert all(len(x) == text.FOREIGN for x in data.foreign.values())
    assert (data.train[0][:, 0] != text.PADDING).all()
    ends = (data.train[0] == text.PADDING).int()
    assert (ends.diff(dim=1) >= 0).all()  # padding is at the end only
