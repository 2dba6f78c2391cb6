"""What the tests of pictures and texts share: tiny pretrained networks in folders, pictures in classes, a table of texts."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from PIL import Image

PROCESSOR = {
    "vit": {"size": {"height": 16, "width": 16}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    "resnet": {"size": {"shortest_edge": 28}, "crop_pct": 0.875, "resample": 3},
}
TINY = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
WORDS = ["pay", "bill", "card", "play", "song", "music", "my", "the", "a", "please"]


@pytest.fixture(scope="session")
def networks(tmp_path_factory):
    """Folders as `save_pretrained` writes them: vit, resnet, bert."""
    root = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    vit = transformers.ViTConfig(image_size=16, patch_size=8, **TINY)
    resnet = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_channels=3
    )
    bert = transformers.BertConfig(vocab_size=16, max_position_embeddings=32, **TINY)
    for name, model in {
        "vit": transformers.ViTModel(vit),
        "resnet": transformers.ResNetModel(resnet),
        "bert": transformers.BertModel(bert),
    }.items():
        model.save_pretrained(root / name)
    for name, content in PROCESSOR.items():
        (root / name / "preprocessor_config.json").write_text(json.dumps(content))
    vocabulary = root / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    transformers.BertTokenizer(str(vocabulary)).save_pretrained(root / "bert")
    return root


def picture(red, seed, size=(20, 24)):
    pixels = np.random.default_rng(seed).integers(0, 80, (*size, 3)).astype(np.uint8)
    pixels[..., 0 if red else 2] += 150
    return Image.fromarray(pixels)


@pytest.fixture
def pictures(tmp_path):
    """60 pictures in the folders red and blue."""
    for i in range(60):
        folder = tmp_path / "pictures" / ("red" if i % 2 else "blue")
        folder.mkdir(parents=True, exist_ok=True)
        picture(i % 2, i).save(folder / f"{i:02d}.png")
    return tmp_path / "pictures"


@pytest.fixture
def texts(tmp_path):
    """A table of 80 texts about bills and about music."""
    rng = np.random.default_rng(0)
    rows = [
        {"text": " ".join([*rng.choice(WORDS[6:], 3), *rng.choice(WORDS[:3] if i % 2 else WORDS[3:6], 3)]),
         "intent": "money" if i % 2 else "music"}
        for i in range(80)
    ]  # fmt: skip
    path = tmp_path / "texts.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path
