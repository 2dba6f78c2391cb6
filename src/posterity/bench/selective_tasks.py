"""Tasks on which a network should know when not to answer: pictures with noise, photographs, texts, pictures with questions.

All networks are trained by IVON on few rows; step size and data_weight of each were picked by the NLL of its draws on the
validation rows of seed 0, from step sizes 0.03 to 1 and weights 10 and 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from posterity.bench.archives import archive, jpegs, pixels
from posterity.bench.bde_image import resnet
from posterity.bench.minilm import embedded, pooled, requests
from posterity.bench.text import foreign_texts, sst
from posterity.bench.zoo_trained import TRAINED, as_imagenet
from posterity.random import Random

__all__ = ["TASKS", "Rows", "Task"]

CALIBRATION, TEST, FOREIGN = 900, 2000, 300
PHOTOGRAPHS = 1000  # of the test rows
NOISE = 0.35  # std of what is added to digits and clothes, whose pixels lie in [0, 1]


class Rows(NamedTuple):
    """Inputs and labels: of training, calibration and test; and foreign inputs by name."""

    train: tuple[Any, Tensor]
    calibration: tuple[Any, Tensor]
    test: tuple[Any, Tensor]
    foreign: Mapping[str, Any]


class Task(NamedTuple):
    """One of them.

    Args:
        network: a fresh one. rows: by seed.
        rate, weight, init_hessian: step size of IVON, data_weight, curvature at its start.
        epochs, batch: of its training.
        output: the field of what the network returns that holds the logits.
    """

    network: Callable[[], nn.Module]
    rows: Callable[[int], Rows]
    rate: float
    weight: float
    epochs: int
    batch: int
    output: str | None = None
    init_hessian: float = 0.3


# --- networks ---------------------------------------------------------------------------------------------------------


def vit(size: int, patch: int, channels: int) -> nn.Module:
    """A ViT of 3 layers and width 48, from its Hugging Face configuration."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(  # type: ignore[call-arg]
            hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=size,
            patch_size=patch, initializer_range=0.12, num_channels=channels, num_labels=10, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def resnet20() -> nn.Module:
    """With the weights of CIFAR-10 as it is, to be trained on through JPEG files."""
    return TRAINED["CIFAR ResNet-20"]().module


def head(width: int, classes: int) -> nn.Module:
    """Two layers on what a sentence encoder says."""
    return nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, classes))


def vilt() -> nn.Module:
    """A ViLT of 2 layers and width 32 for questions of three words about pictures of 16 x 16."""
    from transformers import ViltConfig, ViltForQuestionAnswering

    return ViltForQuestionAnswering(
        ViltConfig(  # type: ignore[call-arg]
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=16,
            initializer_range=0.15, max_position_embeddings=8, image_size=16, patch_size=8, max_image_length=-1,
            num_labels=len(COLOURS), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


# --- rows -------------------------------------------------------------------------------------------------------------


@cache
def _digits(seed: int) -> Rows:
    own, test = archive("open/images", "mnist_train"), archive("open/images", "mnist_test")
    foreign = {"kuzushiji": "kmnist_test_unlabelled", "fashion": "fashion_mnist_test"}
    return _noisy(seed, own, test, foreign, 2000)


@cache
def _clothes(seed: int) -> Rows:
    own, test = (archive("open/images", f"fashion_mnist_{part}") for part in ("train10k", "test"))
    return _noisy(seed, own, test, {"kuzushiji": "kmnist_test_unlabelled", "digits": "mnist_test"}, 2000)


def _noisy(seed: int, own: Any, test: Any, foreign: Mapping[str, str], train: int) -> Rows:
    """Pictures with noise that is drawn once; training and calibration rows by seed, test rows the same for all."""
    order = np.random.default_rng(seed).permutation(len(own["y"]))[: train + CALIBRATION]
    noise = Random(seed).fold("noise")
    x = _with_noise(pixels(own["x"][order]), noise)
    y = torch.from_numpy(own["y"][order].astype(np.int64))
    fixed = Random(0).fold("test noise")
    shown = {
        name: _with_noise(pixels(archive("open/images", file)["x"][:FOREIGN]), fixed.fold(name))
        for name, file in foreign.items()
    }
    return Rows(
        (x[:train], y[:train]),
        (x[train:], y[train:]),
        (_with_noise(pixels(test["x"][:TEST]), fixed), torch.from_numpy(test["y"][:TEST].astype(np.int64))),
        shown,
    )


def _with_noise(x: Tensor, random: Random) -> Tensor:
    return x + NOISE * random.normal(tuple(x.shape))


@cache
def _photographs(seed: int, train: int, imagenet: bool = False) -> Rows:
    """Calibration rows are of the test file, since a pretrained network has seen those of training."""
    own, test = (archive("unclear", f"cifar10_jpeg_{part}") for part in ("train20k", "test10k"))
    random = np.random.default_rng(seed)
    count = PHOTOGRAPHS + 2 * CALIBRATION
    fit = torch.from_numpy(random.permutation(8000)[:train])
    some = CALIBRATION // 2 if imagenet else CALIBRATION
    held = PHOTOGRAPHS + torch.from_numpy(random.permutation(2 * CALIBRATION)[:some])
    (x, y), (others, labels) = (
        (jpegs(content, rows), torch.from_numpy(content["y"][:rows].astype(np.int64)))
        for content, rows in ((own, 8000), (test, count))
    )
    shown = {
        "flowers": pixels(archive("unclear", "flowers5_32x32")["x"][:FOREIGN]),
        "textures": pixels(archive("open/images", "textures_cc0_32x32")["x"][:FOREIGN]).expand(-1, 3, -1, -1),
    }
    if imagenet:
        x, others = as_imagenet(x), as_imagenet(others)
        shown = {name: as_imagenet(pictures) for name, pictures in shown.items()}
    tests = slice(0, PHOTOGRAPHS)
    return Rows((x[fit], y[fit]), (others[held], labels[held]), (others[tests], labels[tests]), shown)


@cache
def _intents(seed: int) -> Rows:
    found = pooled(requests(seed))
    x, y = found.train
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    held, fit = order[:CALIBRATION], order[CALIBRATION:]
    return Rows((x[fit], y[fit]), (x[held], y[held]), found.test, {"outside": found.outside})


@cache
def _opinions(seed: int) -> Rows:
    (x, y), test = _read_opinions()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    held, fit = order[:CALIBRATION], order[CALIBRATION:]
    return Rows((x[fit], y[fit]), (x[held], y[held]), test, _read_foreign())


@cache
def _read_opinions() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    parts = (sst("train")[:3000], sst("test"))
    own, test = ((embedded([text for text, _ in part]), torch.tensor([y for _, y in part])) for part in parts)
    return own, test


@cache
def _read_foreign() -> dict[str, Tensor]:
    return {name: embedded(foreign_texts(name)[:FOREIGN]) for name in ("sms", "banking")}


COLOURS = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.9], [0.9, 0.9, 0.1], [0.9, 0.1, 0.9]])
GREYS = torch.tensor([[0.1, 0.1, 0.1], [0.5, 0.5, 0.5], [0.9, 0.9, 0.9]])


@cache
def _questions(seed: int) -> Rows:
    """The colour of one of four fields, which the question names, under noise of std 0.5 in every pixel."""
    parts = (("train", seed, 3000), ("calibration", seed, CALIBRATION), ("test", 0, TEST))
    train, held, test = (_asked(Random(own).fold(part), rows) for part, own, rows in parts)
    grey = _asked(Random(0).fold("grey"), FOREIGN, GREYS)
    return Rows(train, held, test, {"grey": grey[0]})


def _asked(random: Random, rows: int, colours: Tensor = COLOURS) -> tuple[dict[str, Tensor], Tensor]:
    generator = random.generator()
    answers = torch.randint(len(colours), (rows, 2, 2), generator=generator)
    field = torch.randint(4, (rows,), generator=generator)
    shade = 0.25 * torch.randn(rows, 2, 2, 3, generator=generator)
    picture = (colours[answers] + shade).movedim(-1, 1).repeat_interleave(8, 2).repeat_interleave(8, 3)
    picture = picture + 0.5 * torch.randn(picture.shape, generator=generator)
    words = torch.stack([torch.ones_like(field), 4 + field, torch.full_like(field, 2)], 1)
    mask = torch.ones(rows, 16, 16, dtype=torch.long)
    return {"input_ids": words, "pixel_values": picture, "pixel_mask": mask}, answers.flatten(1)[
        torch.arange(rows), field
    ]


TASKS: dict[str, Task] = {
    "mnist-vit": Task(partial(vit, 28, 7, 1), _digits, 0.1, 100.0, 20, 50, "logits", 0.1),
    "mnist-cnn": Task(partial(resnet, 1), _digits, 1.0, 10.0, 15, 50),
    "fashion-vit": Task(partial(vit, 28, 7, 1), _clothes, 0.1, 100.0, 20, 50, "logits", 0.1),
    "fashion-cnn": Task(partial(resnet, 1), _clothes, 1.0, 10.0, 15, 50),
    "cifar-vit": Task(partial(vit, 32, 8, 3), partial(_photographs, train=5000), 0.1, 100.0, 15, 50, "logits", 0.1),
    "cifar-resnet20": Task(resnet20, partial(_photographs, train=3000, imagenet=True), 0.03, 10.0, 2, 50),
    "intents-head": Task(partial(head, 384, 150), _intents, 0.1, 10.0, 30, 50),
    "opinions-head": Task(partial(head, 384, 2), _opinions, 0.1, 1.0, 20, 50),
    "questions-vilt": Task(vilt, _questions, 0.1, 100.0, 30, 50, "logits", 0.1),
}
