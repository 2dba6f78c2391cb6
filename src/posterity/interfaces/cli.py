"""The command line. stdout holds results, stderr progress and errors.

Exit codes: 0 done, 1 a check failed or an internal fault, 2 bad input or usage.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

from posterity.errors import PosterityError, PosterityWarning
from posterity.interfaces import table_commands
from posterity.interfaces.certify import certify
from posterity.interfaces.console import say, stderr, stdout
from posterity.interfaces.export import export
from posterity.interfaces.forecast.command import forecast
from posterity.interfaces.ranks import together
from posterity.interfaces.results import folder, report

__all__ = ["app", "main"]

app = typer.Typer(
    help="Make a PyTorch network say how sure it is.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print JSON only; progress goes to stderr.")]
for _command in ("fit", "predict", "evaluate", "compare", "doctor"):
    app.command(_command)(getattr(table_commands, _command))
app.command("certify")(certify)
app.command("export")(export)
app.command("forecast")(forecast)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        import posterity

        stdout.print(posterity.__version__)
        raise typer.Exit


@app.command()
def demo(
    as_json: Json = False,
    seed: Annotated[int, typer.Option(help="Of the split, the fits and the draws.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for evaluation.json and report.html.")] = Path("posterity-demo"),
) -> None:
    """Compare every method on real handwritten digits; about a minute on two cores."""
    import torch

    from posterity.interfaces.demo import run

    torch.set_num_threads(1)  # networks this small lose more by a second thread than they gain
    began = time.perf_counter()
    stderr.print("Digits 0-7 to learn; 8 and 9, and pixel noise, to be recognised as foreign.")
    result = run(seed, tell=lambda line: stderr.print(f"  {line}  [dim]{time.perf_counter() - began:.0f} s[/dim]"))
    result.settings["command"] = f"posterity demo --seed {seed}"
    path = folder(out) / "evaluation.json"
    record = result.to_json(path)
    if as_json:
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    else:
        stdout.print(result.table(("accuracy", "nll", "ece", "aurc", "ood_auroc", "ood_auroc_noise")))
        stdout.print(_LEGEND)
    say(f"{path} written, {time.perf_counter() - began:.0f} s")
    report(result, out / "report.html", "How sure is a network of handwritten digits?")


_LEGEND = (
    "nll, ece, aurc: less is better; ± is half of a 95 % interval.\n"
    "ood_auroc: how well the entropy tells the digits 8 and 9 from 0-7\n"
    "(0.5 not at all, 1 always); _noise: pixel noise instead."
)


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="Which; without it, the list. `all --quick`: the ratios of times of all.")
    ] = None,
    as_json: Json = False,
    quick: Annotated[bool, typer.Option(help="A minute of the same work; not for publication.")] = False,
    peers: Annotated[bool, typer.Option(help="Add the other libraries' rows (make peers).")] = False,
    check: Annotated[
        bool,
        typer.Option(help="Compare the committed figures with their thresholds, or `all --quick` with the baseline."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write the JSON.")] = None,
) -> None:
    """Measure a claim of this library, as ratios within one run."""
    from posterity import bench as benches

    if name == benches.ALL:
        _all_benches(quick and not peers, check, as_json, out)
        return
    if check:
        failures = [line for each in ([name] if name else benches.names()) for line in benches.check(each)]
        for line in failures:
            stderr.print(line)
        raise typer.Exit(1 if failures else 0)
    if name is None:
        sys.stdout.write("\n".join(benches.names()) + "\n")
        return
    if name not in benches.names():
        raise typer.BadParameter(f"no bench is called {name!r}; there are {', '.join(benches.names())}")
    record = benches.run(name, quick=quick, peers=peers, out=out, tell=lambda line: stderr.print(line))
    if as_json:
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    else:
        stdout.print(benches.table(record))


def _all_benches(ratios_only: bool, check: bool, as_json: bool, out: Path | None) -> None:
    """The ratios of times of all benches, or what is lost against the committed ones."""
    from posterity.bench import speed

    def tell(line: str) -> None:
        stderr.print(line, highlight=False, soft_wrap=True)

    if not ratios_only:
        raise typer.BadParameter(
            "all benches at full size take days, and some need data or peers: name one. `posterity bench all --quick` "
            "measures the ratios of times, and `posterity bench --check` looks at the committed figures of all"
        )
    if check:
        failures = speed.compare(tell, out=out)
        for line in failures:
            tell(line)
        raise typer.Exit(1 if failures else 0)
    record = speed.measure(tell, out=out)
    if as_json:
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    else:
        stdout.print(speed.table(record))


def _say_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    if issubclass(category, PosterityWarning):
        say(f"warning: {message}")


def main() -> None:
    """Run the command line; a library error is one sentence and exit code 2, never a traceback; a warning is a line."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _say_warning
            with together(sys.argv[1:]) as works:
                if works:
                    app()
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (PosterityError, ImportError, OSError) as error:
        stderr.print(f"posterity: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
