"""`posterity fit | predict | evaluate | compare | doctor`: rows in, posteriors, predictions, metrics and advice out.

Rows are those of a table; of fit, predict and evaluate pictures in a folder and texts in a column too (`kinds.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.errors import DataError
from posterity.interfaces.console import say, stdout
from posterity.interfaces.ranks import several
from posterity.interfaces.results import folder, listed, show, write_json

if TYPE_CHECKING:
    from posterity.interfaces.kinds import Kind
    from posterity.interfaces.settings import Settings

__all__ = ["compare", "doctor", "evaluate", "fit", "predict"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON only; progress goes to stderr.")]
_METHOD = "map, deep-ensemble (default), mean-field, ivon, score-vi, laplace; or a dotted class path."
Data = Annotated[
    Path, typer.Argument(help="CSV, Parquet, a folder of pictures; or a YAML file with the options' keys.")
]
Table = Annotated[Path, typer.Argument(help="CSV or Parquet; or a YAML file with the same keys as the options.")]
Run = Annotated[Path, typer.Argument(help="The folder that fit wrote.")]
Target = Annotated[str | None, typer.Option(help="Column to predict; guessed, and said, unless given.")]
Task = Annotated[str | None, typer.Option(help="classification or regression; guessed, and said, unless given.")]
AnyTask = Annotated[str | None, typer.Option(help="classification, regression, image or text; guessed unless given.")]
Text = Annotated[str | None, typer.Option(help="Column that holds texts, for a backbone to read.")]
Backbone = Annotated[
    str | None, typer.Option(help="efficientnet-lite0 (pictures), minilm (texts), or a local Hugging Face folder.")
]
Adapt = Annotated[str | None, typer.Option(help="Of the backbone: head (default), last-blocks or low-rank.")]
FalseAlarms = Annotated[
    float | None, typer.Option(help="Share of rows that belong which out_of_scope may name; 0.05 unless given.")
]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out; repeat it, or give several by commas.")]
Network = Annotated[str | None, typer.Option(help="linear, mlp (default), resmlp, or a dotted class path.")]
Likelihood = Annotated[
    str | None, typer.Option(help="By the task unless given: e.g. heteroscedastic, student-t, poisson.")
]
Rank = Annotated[int | None, typer.Option(help="Of low-rank, swag, score-vi-low-rank; the method's own unless given.")]
Epochs = Annotated[int | None, typer.Option(help="Per member; by the number of rows unless given.")]
BatchSize = Annotated[int | None, typer.Option(help="Rows per batch; by the number of rows unless given.")]
Prior = Annotated[
    float | None, typer.Option(help="Std of a weight's prior times the root of its fan-in; 2 unless given.")
]
Weight = Annotated[float | None, typer.Option(help="Every row counts so many times; 1 unless given.")]
Test = Annotated[float | None, typer.Option(help="Share of the rows kept for the test; 0.2 unless given, 0 for none.")]
Validation = Annotated[float | None, typer.Option(help="Share of the rows that pick snapshots; 0.15 unless given.")]
SplitColumn = Annotated[str | None, typer.Option(help="Column that says train, validation or test.")]
Group = Annotated[str | None, typer.Option(help="Column whose groups stay whole in the split (patients, shops).")]
Time = Annotated[str | None, typer.Option(help="Column to split by: the last rows are the test.")]
Seed = Annotated[int | None, typer.Option(help="Of the fit and its predictions; 0 unless given.")]
SplitSeed = Annotated[int | None, typer.Option(help="Of the split; 0 unless given.")]
Calibrate = Annotated[bool | None, typer.Option(help="Fit a temperature on the validation rows, where there are some.")]
Via = Annotated[str | None, typer.Option(help="draws, mean or propagation.")]
Draws = Annotated[int | None, typer.Option(help="Draws of the weights; 32, or all members, unless given.")]


def fit(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("run"),
    target: Target = None, task: AnyTask = None, drop: Drop = None,
    text: Text = None, backbone: Backbone = None, adapt: Adapt = None, false_alarms: FalseAlarms = None,
    method: Annotated[str | None, typer.Option(help=_METHOD)] = None, rank: Rank = None,
    network: Network = None, likelihood: Likelihood = None, epochs: Epochs = None, batch_size: BatchSize = None,
    prior: Prior = None, data_weight: Weight = None, test: Test = None, validation: Validation = None,
    split_column: SplitColumn = None, group: Group = None, time: Time = None, seed: Seed = None,
    split_seed: SplitSeed = None, calibrate: Calibrate = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out, or return it.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Fit a posterior to a table, a folder of pictures or a column of texts; evaluate it on the rows kept for the test."""
    options = {
        "target": target, "task": task, "drop": drop, "method": method, "rank": rank, "network": network,
        "likelihood": likelihood, "epochs": epochs, "batch_size": batch_size, "prior": prior, "data_weight": data_weight,
        "test": test, "validation": validation, "split_column": split_column, "group": group, "time": time, "seed": seed,
        "split_seed": split_seed, "calibrate": calibrate, "text": text, "backbone": backbone, "adapt": adapt,
        "false_alarms": false_alarms,
    }  # fmt: skip
    kind, prepared = _prepared(data, options)
    began = perf_counter()
    fitted = kind.fit(prepared, out, resume=resume, tell=say)
    say(f"fitted in {perf_counter() - began:.0f} s: {out}")
    if not len(prepared.parts.test):
        if as_json:
            write_json({"run": str(out)})
        say(f"no rows were kept for a test: posterity evaluate {out} OTHER")
        return
    rows = prepared.frame.iloc[prepared.parts.test]
    _evaluated(fitted, rows, out, {}, prepared.groups, as_json)


def predict(
    run: Run,
    data: Annotated[Path, typer.Argument(help="CSV, Parquet or folder of pictures, as of the fit; no target is needed.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="CSV or Parquet; stdout unless given.")] = None,
    level: Annotated[float, typer.Option(help="Of the intervals lower to upper.")] = 0.9,
    via: Via = None, draws: Draws = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Predict every row, in order: mean and std with intervals, or classes with probabilities."""
    from posterity.interfaces.kinds import loaded
    from posterity.interfaces.tables.read import write_table
    from posterity.interfaces.tables.words import plural

    if not 0 < level < 1:
        raise DataError(f"--level must be a fraction between 0 and 1, got {level:g}")
    fitted = loaded(run)
    frame = _known(fitted, data)
    predictions = fitted.predict(frame, level, via, draws)
    if output is not None:
        write_table(predictions, output)
        say(f"{plural(len(predictions), 'row')} predicted: {output}")
    if as_json:
        write_json({"rows": json.loads(predictions.to_json(orient="records", double_precision=15))})
    elif output is None:
        sys.stdout.write(predictions.to_csv(index=False))


def evaluate(
    run: Run,
    data: Annotated[Path, typer.Argument(help="CSV or Parquet with the target, or a folder of classes of pictures.")],
    ood: Annotated[
        list[Path] | None, typer.Option(help="A foreign table or folder to be told apart; may be repeated.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Column to evaluate by groups of; may be repeated.")] = None,
    via: Annotated[str | None, typer.Option(help="draws, mean, propagation, or several by a comma.")] = None,
    draws: Draws = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; the run unless given.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Evaluate a run on labelled rows: a table, evaluation.json and report.html."""
    from posterity.interfaces.kinds import loaded

    fitted = loaded(run)
    folder(out or run)
    frame = _known(fitted, data)
    foreign = {path.stem: fitted.read(path, say) for path in ood or []}
    _evaluated(fitted, frame, out or run, foreign, group or [], as_json, via, draws, str(data))


def compare(
    data: Table,
    methods: Annotated[str | None, typer.Option(help="By commas; all unless given. The first is the baseline.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Fits of each method; 3 unless given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison; a killed one goes on.")] = Path("comparison"),
    target: Target = None, task: Task = None, drop: Drop = None, network: Network = None,
    likelihood: Likelihood = None, epochs: Epochs = None, batch_size: BatchSize = None, prior: Prior = None,
    data_weight: Weight = None,
    data_weights: Annotated[str | None, typer.Option(help="Grid that each method's own is picked from too.")] = None,
    test: Test = None, validation: Validation = None, split_column: SplitColumn = None,
    group: Group = None, time: Time = None, seed: Seed = None, split_seed: SplitSeed = None,
    calibrate: Calibrate = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Compare methods x seeds on one table with one budget: a table, evaluation.json and report.html."""
    from posterity.interfaces.tables.compare import compare_methods

    options = {
        "methods": methods, "seeds": seeds, "target": target, "task": task, "drop": drop, "network": network,
        "likelihood": likelihood, "epochs": epochs, "batch_size": batch_size, "prior": prior,
        "data_weight": data_weight, "data_weights": data_weights, "test": test, "validation": validation,
        "split_column": split_column, "group": group, "time": time, "seed": seed, "split_seed": split_seed,
        "calibrate": calibrate,
    }  # fmt: skip
    kind, prepared = _prepared(data, options)
    _tables_only(kind, "compare")
    folder(out.parent)
    result = compare_methods(prepared, out, tell=say)
    show(result, out, as_json, f"Methods compared on {data.name}")


def doctor(
    path: Annotated[Path, typer.Argument(help="A table, or the folder of a run.")],
    data: Annotated[Path | None, typer.Argument(help="Of a run: labelled rows that it was not trained on.")] = None,
    target: Target = None, task: Task = None, drop: Drop = None, test: Test = None, validation: Validation = None,
    split_column: SplitColumn = None, group: Group = None, time: Time = None, split_seed: SplitSeed = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Check a table before a fit, or a run after it: what is wrong, by how much, and the way out."""
    from posterity.interfaces.doctor import examine_run, examine_table
    from posterity.interfaces.kinds import kind_of, kind_of_run
    from posterity.interfaces.settings import Settings

    if path.is_dir():
        kind = _tables_only(kind_of_run(path), "doctor")
        findings = examine_run(path, None if data is None else kind.read(Settings(data=str(data)), say))
    else:
        options = {
            "target": target, "task": task, "drop": drop, "test": test, "validation": validation,
            "split_column": split_column, "group": group, "time": time, "split_seed": split_seed,
        }  # fmt: skip
        settings = _settings(path, options)
        kind = _tables_only(kind_of(settings), "doctor")
        findings = examine_table(kind.read(settings, say), settings, say)
    if as_json:
        write_json({"findings": [finding.to_json() for finding in findings]})
    else:
        stdout.print(listed(findings))
    raise typer.Exit(1 if any(finding.status == "fault" for finding in findings) else 0)


def _settings(path: Path, options: dict[str, Any]) -> Settings:
    from posterity.interfaces.settings import Settings, read_yaml

    if path.suffix.lower() not in (".yaml", ".yml"):
        return Settings(data=str(path)).updated(**options)
    settings = read_yaml(path)
    if settings.data is None:
        raise DataError(f"{path} names no table: it needs a line 'data: table.csv'")
    return settings.updated(**options)


def _prepared(path: Path, options: dict[str, Any]) -> tuple[Kind, Any]:
    from posterity.interfaces.kinds import kind_of, use_threads
    from posterity.interfaces.settings import build_method

    settings = _settings(path, options)
    kind = kind_of(settings)
    use_threads(kind)
    frame = kind.read(settings, say)
    if settings.method is not None:  # before minutes are spent on a name that does not exist
        build_method(settings.method, settings.rank)
    return kind, kind.prepare(frame, settings, say)


def _tables_only(kind: Kind, command: str) -> Kind:
    from posterity.interfaces.kinds import use_threads

    if kind.name != "table":
        raise DataError(f"posterity {command} is for tables: of pictures and texts, posterity evaluate measures a run")
    use_threads(kind)
    return kind


def _known(fitted: Any, path: Path) -> Any:
    """The rows at a path as a run takes them; what is remarkable of them is said."""
    frame = fitted.read(path, say)
    for line in fitted.remarks(frame):
        say(line)
    return frame


def _evaluated(
    fitted: Any, frame: Any, out: Path, foreign: dict[str, Any], groups: Sequence[str], as_json: bool,
    via: str | None = None, draws: int | None = None, data: str | None = None,
) -> None:  # fmt: skip
    import posterity as po

    labelled = fitted.labelled(frame)
    ways = via.split(",") if via else None
    result = po.evaluate(
        fitted.model,
        labelled,
        via=ways,
        draws=draws,
        distribute=several(),
        **fitted.evaluation_options(frame, foreign, groups),
    )
    seen = fitted.trained_among(frame)
    if seen:
        flatters = ": the figures flatter" if seen > 0.01 * len(frame) else ""
        say(f"{seen:,} of {len(frame):,} rows have the features of rows that were trained on{flatters}")
    result.settings.update(
        {"data": data or "test rows of the fit", "rows": len(frame), "rows_trained_on": seen, **fitted.said()}
    )
    show(result, out, as_json, f"How sure are predictions of {fitted.target.name}?")
