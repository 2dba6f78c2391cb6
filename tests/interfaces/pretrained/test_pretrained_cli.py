"""`posterity fit | predict | evaluate | export` on pictures and texts."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

QUICK = ("--epochs", "3", "--method", "map")


def fitted(shell, *arguments):
    code, out, err = shell("fit", *arguments, "--out", "run")
    assert code == 0, err
    return err


QUICKLY = (("vit", "low-rank"), ("resnet", "head"))
SLOWLY = (("vit", "head"), ("vit", "last-blocks"), ("resnet", "last-blocks"), ("resnet", "low-rank"))


@pytest.mark.parametrize(
    ("network", "adapt"), [*QUICKLY, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOWLY)]
)
def test_pictures_are_fitted_predicted_and_exported(shell, networks, pictures, tmp_path, network, adapt):
    method = () if adapt == "low-rank" else ("--method", "map")
    fitted(shell, pictures, "--backbone", networks / network, "--adapt", adapt, "--epochs", "3", *method)
    code, _, err = shell("predict", "run", pictures, "-o", "predictions.csv")
    assert code == 0, err
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert len(predictions) == 60
    assert {"file", "label", "confidence", "p_blue", "p_red", "entropy", "epistemic"} <= set(predictions)
    assert np.allclose(predictions.p_blue + predictions.p_red, 1)
    code, out, err = shell("export", "run", "-o", "m.onnx", "--via", "mean", "--json")
    assert code == 0, err
    assert json.loads(out)["outputs"] == ["probs", "entropy", "epistemic"]


@pytest.mark.parametrize(
    "adapt", ["last-blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in ("head", "low-rank"))]
)
def test_texts_are_fitted_predicted_and_exported(shell, networks, texts, tmp_path, adapt):
    method = () if adapt == "low-rank" else ("--method", "map")
    fitted(
        shell, texts, "--text", "text", "--target", "intent", "--backbone", networks / "bert", "--adapt", adapt,
        "--epochs", "3", *method,
    )  # fmt: skip
    code, out, err = shell("predict", "run", texts)
    assert code == 0, err
    assert out.splitlines()[0].startswith("text,label,confidence,p_money,p_music,entropy")
    code, out, err = shell("export", "run", "-o", "m.onnx", "--via", "mean")
    assert code == 0, err
    assert "input_ids" in out


def test_a_linear_head_is_exported_in_one_pass(shell, networks, pictures):
    fitted(shell, pictures, "--backbone", networks / "vit", "--method", "mean-field", "--epochs", "2")
    code, out, err = shell("export", "run", "-o", "m.onnx", "--example", pictures)
    assert code == 0, err
    assert "via propagation" in out
    assert "[rows, 3, 16, 16]" in out


def test_a_picture_is_predicted_alike_alone_and_among_others(shell, networks, pictures, tmp_path):
    fitted(shell, pictures, "--backbone", networks / "resnet", *QUICK)
    shell("predict", "run", pictures, "-o", "all.csv")
    (tmp_path / "one").mkdir()
    (pictures / "red" / "31.png").rename(tmp_path / "one" / "31.png")
    shell("predict", "run", "one", "-o", "one.csv")
    among, alone = pd.read_csv(tmp_path / "all.csv"), pd.read_csv(tmp_path / "one.csv")
    there = among[among.file.str.endswith("31.png")].iloc[0]
    assert alone.p_red[0] == pytest.approx(there.p_red, abs=1e-5)


def test_out_of_scope_holds_its_false_alarms_and_evaluate_says_what_was_trained_on(shell, networks, texts, tmp_path):
    arguments = ("--text", "text", "--target", "intent", "--backbone", networks / "bert", "--validation", "0.4")
    fitted(shell, texts, *arguments, *QUICK, "--false-alarms", "0.1")
    record = json.loads((tmp_path / "run" / "pretrained.json").read_text())
    assert record["scope"]["false_alarms"] == 0.1
    _, out, _ = shell("predict", "run", texts)
    assert "out_of_scope" in out.splitlines()[0]
    pd.DataFrame({"text": ["song bill", "music pay a card"]}).to_csv(tmp_path / "other.csv", index=False)
    code, _, err = shell("evaluate", "run", texts, "--ood", "other.csv", "--out", "found")
    assert code == 0, err
    assert "rows have the features of rows that were trained on" in err
    row = json.loads((tmp_path / "found" / "evaluation.json").read_text())["rows"][0]
    assert "ood_auroc_other" in row["metrics"] or "ood_auroc" in row["metrics"]
    assert row["details"]["extremes"]["about"][0]


def test_a_run_refuses_a_backbone_that_has_changed(shell, networks, texts, tmp_path):
    import shutil

    import transformers

    shutil.copytree(networks / "bert", tmp_path / "bert")
    fitted(shell, texts, "--text", "text", "--target", "intent", "--backbone", tmp_path / "bert", *QUICK)
    model = transformers.AutoModel.from_pretrained(tmp_path / "bert")
    model.embeddings.word_embeddings.weight.data += 1
    model.save_pretrained(tmp_path / "bert")
    code, _, err = shell("predict", "run", texts)
    assert code == 2
    assert "has other weights" in err


def test_parts_above_the_classes_are_the_split(shell, networks, pictures, tmp_path):
    for path in sorted(pictures.glob("*/*.png")):
        part = "test" if int(path.stem) < 12 else "train"
        target = tmp_path / "parts" / part / path.parent.name
        target.mkdir(parents=True, exist_ok=True)
        path.rename(target / path.name)
    doubled = tmp_path / "parts" / "train" / "red" / "13.png"
    (tmp_path / "parts" / "test" / "red" / "again.png").write_bytes(doubled.read_bytes())
    err = fitted(shell, "parts", "--task", "image", "--backbone", networks / "vit", *QUICK, "--validation", "0")
    assert "48 train, 0 validation, 13 test" in err
    assert "1 of 13 test rows are training rows too" in err


def broken(pictures):
    (pictures / "red" / "bad.png").write_bytes(b"no picture")


def alone(pictures):
    (pictures / "green").mkdir()
    Image.new("L", (20, 20)).save(pictures / "green" / "1.png")


def flat(pictures):
    for path in pictures.glob("*/*.png"):
        path.rename(pictures / path.name)


def beside(pictures):
    Image.new("L", (20, 20)).save(pictures / "1.png")


def empty(pictures):
    for path in pictures.glob("*/*.png"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken, "bad.png cannot be read as a picture"),
        (alone, "one picture is no class: 'green'"),
        (flat, "these pictures have no classes"),
        (beside, "1 picture beside them"),
        (empty, "holds no pictures"),
    ],
)
def test_bad_pictures_are_named(shell, networks, pictures, spoil, message):
    spoil(pictures)
    code, _, err = shell("fit", pictures, "--backbone", networks / "vit", *QUICK)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--text", "txt"), "--text txt: the table has no such column; did you mean 'text'?"),
        (("--text", "text", "--backbone", "google/vit"), "no hub is asked"),
        (("--text", "text", "--backbone", "efficientnet-lite0"), "is for images"),
        (("--text", "text", "--adapt", "all"), "--adapt is one of head, last-blocks, low-rank"),
        (("--text", "text", "--network", "mlp2"), "--network is for tables"),
        (("--backbone", "minilm"), "this is a table"),
    ],
)
def test_wrong_options_are_refused(shell, networks, texts, options, message):
    if "--backbone" not in options:
        options = (*options, "--backbone", networks / "bert")
    code, _, err = shell("fit", texts, "--target", "intent", *options)
    assert code == 2
    assert message in err


def test_empty_texts_are_named(shell, networks, texts, tmp_path):
    frame = pd.read_csv(texts)
    frame.loc[[2, 5], "text"] = "  "
    frame.to_csv(texts, index=False)
    code, _, err = shell("fit", texts, "--text", "text", "--target", "intent", "--backbone", networks / "bert")
    assert code == 2
    assert "is empty in 2 rows (rows 2, 5" in err


@pytest.mark.parametrize("command", [("compare", "pictures"), ("doctor", "run")])
def test_what_is_for_tables_alone_says_so(shell, networks, pictures, command):
    fitted(shell, pictures, "--backbone", networks / "vit", *QUICK)
    code, _, err = shell(*command)
    assert code == 2
    assert f"posterity {command[0]} is for tables" in err
