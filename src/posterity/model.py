"""`BayesianModel`: a network, a problem and a posterior. What `fit` returns, and what a run folder holds."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posterity.errors import CompatibilityError, DataError, PosterityWarning, StorageError
from posterity.history import History
from posterity.posterior.draws import Streamed
from posterity.posterior.files import FileRecord, strict_json, understood
from posterity.posterior.posterior import Posterior, posterior_from
from posterity.posterior.shards import ShardWriter
from posterity.posterior.storage import MANIFEST, load_json, load_manifest, load_tree, records, save_run
from posterity.prediction.draws import batches_of, default_via, predict_blocks, recorded_outputs
from posterity.prediction.noisy import noisy
from posterity.prediction.predictive import Predictive, concat
from posterity.prediction.propagation.calibrate import Sites, calibrated
from posterity.prediction.propagation.settings import Propagation
from posterity.prediction.temperature import check_labels, fit_temperature
from posterity.prediction.turns import Turns
from posterity.problem.batches import Reader, to_device
from posterity.problem.likelihoods import likelihood_from_json
from posterity.problem.network import Network
from posterity.problem.priors import prior_from_json
from posterity.problem.problem import NetworkProblem
from posterity.problem.snapshot import Snapshot
from posterity.random import Random
from posterity.tree import BUFFER, LIKELIHOOD, Tree, pick

__all__ = ["BayesianModel", "load", "load_snapshots", "versions"]


class BayesianModel:
    """A fitted posterior over the weights of a network.

    Attributes:
        problem: network, likelihood, prior, N, data_weight.
        posterior: what is known of the weights.
        settings: everything the fit was told, in JSON; `settings["seed"]` addresses the draws of `predict`.
        history: a list of one dict per epoch (`.to_frame()` with the tables extra).
        temperature, calibration: what `calibrate` found, and the NLL before and after; 1 and None before.
        propagation: how `via="propagation"` goes: its rules, yours to choose, and what `calibrate` found for it.
        snapshots: weights with the optimizer's statistics, one per member, where the method keeps them.
    """

    def __init__(
        self,
        problem: NetworkProblem,
        posterior: Posterior,
        *,
        settings: Mapping[str, Any] | None = None,
        history: Sequence[dict[str, Any]] = (),
        snapshots: Sequence[Snapshot] = (),
        temperature: float = 1.0,
    ) -> None:
        self.problem = problem
        self.posterior = posterior
        self.settings = dict(settings or {})
        self.history = history if isinstance(history, History) else History(history)
        self.snapshots = list(snapshots)
        self.temperature = temperature
        self.calibration: dict[str, Any] | None = None
        self.propagation = Propagation()

    def __repr__(self) -> str:
        method = self.settings.get("method", self.posterior.kind)
        return (
            f"BayesianModel({method}, {self.problem.likelihood.name}, N={self.problem.data_size}, "
            f"data_weight={self.problem.data_weight:g}, temperature={self.temperature:.4g})"
        )

    # --- what is said ----------------------------------------------------------------------------------------------

    def predict(
        self,
        x: Any,
        via: str | None = None,
        draws: int | None = None,
        *,
        seed: int | None = None,
        batch_size: int | None = None,
        max_memory: int = 256 * 2**20,
        keep: str | None = None,
        input_std: Any = None,
    ) -> Predictive:
        """Predict with uncertainty.

        The weight draws are shared by all rows and addressed by (seed of the fit, draw): rows do not depend on the others
        in their batch, and two calls agree, also after a load.

        Args:
            x: a tensor, array, frame of numbers, dict or tuple of inputs, data set or loader (targets in it are ignored).
            via: "draws"; "mean", one pass with the posterior's mean weights; or "propagation", one pass of means and
                variances. By default draws, and the mean of a point.
            draws: how many; all of a finite posterior, else 32, unless given. A finite posterior has no more than it has. Of
                "propagation" the fixed points that are laid on the outputs, 64 unless given.
            seed: other draws than those of the fit's own seed.
            batch_size: rows per pass where `x` brings no batches; 1024 unless given.
            max_memory: bytes of inputs, and of what is kept of their outputs, that are held at once; the draws are made
                again for every such block.
            keep: "draws" to keep each draw's own outputs, `[draw, row, ...]`.
            input_std: std of independent normal noise in `x`, in its units: a float, or what broadcasts to it (of a loader:
                to its rows). Propagated, or drawn with the weights, the same noise for all rows of a draw.

        Raises:
            DataError, ShapeError: NaN or infinity in `x`, no rows; an `input_std` that does not fit.
            CompatibilityError: an unknown `via`, the mean of an ensemble or of noisy inputs, an operation that cannot be
                propagated.
        """
        options = {"via": via, "draws": draws, "max_memory": max_memory, "keep": keep, "input_std": input_std}
        parts = [pred for pred, _ in self._blocks(x, False, seed=seed, batch_size=batch_size, **options)]
        if not parts:
            raise DataError("there are no rows to predict")
        return concat(parts)

    def predict_blocks(self, x: Any, **options: Any) -> Iterator[Predictive]:
        """As `predict`, batch by batch: memory does not grow with the rows."""
        yield from (pred for pred, _ in self._blocks(x, False, **options))

    def predict_with_targets(self, data: Any, **options: Any) -> Iterator[tuple[Predictive, Any]]:
        """Predictions and raw targets of labelled data, batch by batch; options as in `predict`.

        With `turns=Turns(group)` of those batches only that are this rank's.

        Raises:
            DataError: batches without targets.
        """
        yield from self._blocks(data, True, **options)

    def _blocks(
        self,
        data: Any,
        targets: bool,
        *,
        seed: int | None = None,
        batch_size: int | None = None,
        turns: Turns | None = None,
        **options: Any,
    ) -> Iterator[tuple[Predictive, Any]]:
        random = Random(int(self.settings.get("seed", 0)) if seed is None else seed)
        batches = batches_of(data, self.problem.reader, batch_size, targets)
        if (std := options.pop("input_std", None)) is not None:
            batches, options["noisy"] = noisy(batches, std, data, targets), True
        batches = batches if turns is None else turns.deal(batches)
        self._check_way(options.get("via"))
        options = {"temperature": self.temperature, "settings": self.propagation, **options}
        return predict_blocks(self.problem, self.posterior, batches, random=random, **options)

    def _check_way(self, via: str | None) -> None:
        """Warn where the temperature was fitted to what is said in another way."""
        fitted = (self.calibration or {}).get("via", "")
        via = via or default_via(self.posterior)
        if self.temperature != 1.0 and fitted and via != fitted:
            warnings.warn(
                f"the temperature {self.temperature:.4g} was fitted to predictions via {fitted!r}, not via "
                f"{via!r}: calibrate(..., via=...) fits one for these",
                PosterityWarning,
                stacklevel=4,
            )

    def calibrate(
        self,
        data: Any,
        *,
        via: str | None = None,
        draws: int | None = None,
        batch_size: int | None = None,
        sites: Sites = "all",
    ) -> BayesianModel:
        """Fit what is predicted to held-out data by its NLL; predictions use it from now on.

        A temperature: logits are divided by it, stds multiplied by its root. Guo et al. (2017). Of `via="propagation"` also
        a scale of the variance at each site (activation, norm, pooling), arXiv 2606.16214; where the variance does not help
        on rows that were left out, the mean network with its temperature answers from then on, and a warning says so. The
        NLL before and after is in `calibration`. The outputs of all rows and draws are held while it is fitted.

        Args:
            data: labelled rows that were not trained on; a few hundred for propagation.
            via, draws, batch_size: as in `predict`.
            sites: of propagation, "all"; or "outputs", one scale for what the network says.

        Returns:
            The model itself.

        Raises:
            DataError: no rows, or targets that cannot be used.
            CompatibilityError: a likelihood without a temperature (Poisson), except via propagation.
        """
        batches = list(batches_of(data, self.problem.reader, batch_size, targets=True))
        check_labels(self.problem.likelihood, [batch.targets for batch in batches])
        random = Random(int(self.settings.get("seed", 0)))
        if via == "propagation":
            found = calibrated(
                self.problem, self.posterior, batches, self.propagation, sites=sites, points=draws, random=random
            )
            self.propagation, self.temperature, about = found
            if not self.propagation.helps:
                warnings.warn(
                    f"on {about['checked']} rows left out of the fit the variance does not help (NLL "
                    f"{about['nll_propagated']:.4g}; the mean network with its temperature: {about['nll_mean']:.4g}): via "
                    "propagation the mean network answers from now on",
                    PosterityWarning,
                    stacklevel=2,
                )
        else:
            recorded = recorded_outputs(self.problem, self.posterior, batches, via=via, draws=draws, random=random)
            self.temperature, about = fit_temperature(self.problem.likelihood, recorded)
        self.calibration = {"via": via or default_via(self.posterior), **about}
        return self

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        example: Any,
        via: str = "propagation",
        draws: int | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write an ONNX file that says what `predict` says: `probs`, `entropy`, `epistemic` of classes, `mean`, `std`,
        `epistemic` of numbers in the targets' units, for any number of rows.

        The file is compared with the network in ONNX Runtime at 1, 5 and 17 rows before it appears: 1e-5 of every output;
        the difference found, the temperature and the class labels are in its metadata (`posterity`).

        Args:
            example: inputs of at least two rows, as `predict` takes them.
            via: "propagation", one pass; "mean"; or "draws", each draw a network in the file.
            draws: as in `predict`.
            about: JSON that goes into the metadata too, such as what the inputs are.

        Raises:
            ImportError: no onnx extra.
            CompatibilityError: a likelihood without such outputs, or a network that cannot be written down; no file is left.
        """
        from posterity.prediction.export import exported, write_onnx

        batch = next(iter(batches_of(example, self.problem.reader, None)))
        module, inputs, names = exported(
            self.problem,
            self.posterior,
            to_device(batch.inputs, self.problem.network.device),
            via=via,
            draws=draws,
            temperature=self.temperature,
            seed=int(self.settings.get("seed", 0)),
            settings=self.propagation,
        )
        self._check_way(via)
        labels = getattr(self.problem.likelihood, "classes", None)
        own = {"via": via, "temperature": self.temperature, "classes": labels, "versions": versions()}
        target = Path(path)
        write_onnx(module, inputs, names, target, {**(about or {}), **own})
        return target

    # --- what is kept ----------------------------------------------------------------------------------------------

    def to_module(self, into: nn.Module) -> nn.Module:
        """Put the posterior's mean weights, the buffers and the frozen tensors into a fresh network of the same kind.

        Raises:
            CompatibilityError: the mean of an ensemble, or a network with other tensors.
        """
        mean = self.posterior.mean()
        network = self.problem.network
        if into is network.module:
            raise CompatibilityError("into= must be a fresh network: the one that was fitted is never changed")
        state = {**network.constants, **{n: v for n, v in mean.items() if not n.startswith((BUFFER, LIKELIHOOD))}}
        state |= pick(mean, BUFFER)
        own = {**dict(into.named_parameters()), **dict(into.named_buffers())}
        _same_network({n: tuple(v.shape) for n, v in state.items()}, {n: tuple(v.shape) for n, v in own.items()})
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)
        return into

    def starting_points(self) -> list[Snapshot | Tree]:
        """Where another fit can start from: the snapshots, or the members, or the mean weights."""
        if self.snapshots:
            return list(self.snapshots)
        finite = self.posterior.finite
        return [self.posterior.mean()] if finite is None else list(self.posterior.draws(finite, Random(0)))

    def save(self, folder: str | os.PathLike[str], shards: Mapping[str, FileRecord] | None = None) -> None:
        """Write the run to a folder; killed at any moment, it holds the whole old run or the whole new one.

        Raises:
            StorageError: the folder holds something foreign, or the disk is full.
        """
        if shards is None and isinstance(self.posterior, Streamed):
            writer = ShardWriter(folder)
            for draw in self.posterior.stored():
                writer.append(draw)
            shards = writer.close()
        trees: dict[str, Tree] = {"posterior": self.posterior.tensors(), "network": self.problem.network.constants}
        prior = getattr(self.problem.prior, "centers", {})
        if prior:
            trees["prior"] = dict(prior)
        for k, snapshot in enumerate(self.snapshots):
            trees[f"snapshot-{k:03d}"] = snapshot.flat()
        manifest = {
            **self.settings,
            "posterior": {"kind": self.posterior.kind, "meta": self.posterior.meta()},
            "history": list(self.history),
            "versions": versions(),
        }
        found = {"temperature": self.temperature, "propagation": self.propagation.to_json(), **(self.calibration or {})}
        extra = {"calibration": found}
        save_run(folder, strict_json(manifest, null=True), trees, extra, shards)


def load(
    folder: str | os.PathLike[str], network: nn.Module, *, output: Any = None, device: torch.device | str | None = None
) -> BayesianModel:
    """A saved run with its network, which brings the code (its weights are not used and not changed).

    Args:
        folder: what `fit(out=...)` or `save` wrote.
        network: a module of the same architecture.
        output: as in `fit`, where the network has several outputs.
        device: where to compute.

    Raises:
        StorageError: nothing there, truncated, corrupt, foreign, or written by a newer version.
        CompatibilityError: the network has other tensors than the run; the first differences are named.
    """
    manifest = load_manifest(folder)
    net = Network(network, output=output, device=device)
    with understood(Path(folder) / MANIFEST):
        return _built(folder, manifest, net)


def _built(folder: str | os.PathLike[str], manifest: Mapping[str, Any], net: Network) -> BayesianModel:
    """What the manifest and the files describe, over the network."""
    saved = {name: tuple(shape) for name, shape in manifest["network"].items()}
    _same_network(saved, {name: tuple(leaf.shape) for name, leaf in net.trainable.items()})
    constants = load_tree(folder, "network")
    _same_network(
        {name: tuple(leaf.shape) for name, leaf in constants.items()},
        {name: tuple(leaf.shape) for name, leaf in net.constants.items()},
    )
    net.replace_constants(constants)
    names = records(folder)
    prior = prior_from_json(manifest["prior"], load_tree(folder, "prior") if "prior" in names else None)
    problem = NetworkProblem(
        net, likelihood_from_json(manifest["likelihood"]), prior, data_size=manifest["data_size"],
        data_weight=manifest["data_weight"], reader=Reader(**manifest["reader"]), precision=manifest["precision"],
        clip=manifest["clip"],
    )  # fmt: skip
    kind = manifest["posterior"]["kind"]
    where = {"folder": folder, "device": net.device}  # of draws that are read as they are asked for
    posterior = posterior_from(
        kind, load_tree(folder, "posterior", net.device), {**manifest["posterior"]["meta"], **where}
    )
    draw = next(posterior.draws(1, Random(0)), {})
    for name, shape in saved.items():
        if name not in draw or tuple(draw[name].shape) != shape or not draw[name].dtype.is_floating_point:
            raise StorageError(
                f"{folder} is corrupt: its posterior does not say what {name} is, numbers of shape {shape}"
            )
    if type(seed := manifest.get("seed", 0)) is not int or seed < 0:
        raise StorageError(f"{folder} is corrupt: its seed is {seed!r:.80}")
    changing = frozenset(n.removeprefix(BUFFER) for n in draw if n.startswith(BUFFER))
    net.changing, net.probed = changing, True
    problem.idle = frozenset(manifest["idle"])
    calibration = load_json(folder, "calibration")
    if not (temperature := calibration.pop("temperature")) > 0:
        raise StorageError(f"{folder} is corrupt: its temperature is {temperature}")
    derived = {"posterior", "history", "versions", "library", "format_version", "files", "sha256"}
    model = BayesianModel(
        problem,
        posterior,
        settings={key: value for key, value in manifest.items() if key not in derived},
        history=History.from_json(manifest["history"]),
        snapshots=load_snapshots(folder) if "snapshot-000" in names else [],
        temperature=temperature,
    )
    if "propagation" in calibration:
        model.propagation = Propagation.from_json(calibration.pop("propagation"))
    model.calibration = calibration or None
    return model


def load_snapshots(folder: str | os.PathLike[str]) -> list[Snapshot]:
    """The snapshots of a saved run, one per member.

    Raises:
        StorageError: the run keeps none, or as in `load`.
    """
    names = sorted(name for name in records(folder) if name.startswith("snapshot-"))
    if not names:
        raise StorageError(f"{Path(folder)} keeps no snapshots: load the model with its network and pass it as start=")
    return [Snapshot.of(load_tree(folder, name)) for name in names]


def _same_network(there: Mapping[str, tuple[int, ...]], here: Mapping[str, tuple[int, ...]]) -> None:
    if there == here:
        return
    found = []
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            found.append(f"{name}: {there.get(name, 'absent')} in the run, {here.get(name, 'absent')} in the network")
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    raise CompatibilityError(f"the network is not the one that was fitted ({'; '.join(found[:3])}{more})")


def versions() -> dict[str, str]:
    """Of this library, torch and Python."""
    try:
        own = version("posterity")
    except PackageNotFoundError:
        own = "unknown"
    return {"posterity": own, "torch": torch.__version__, "python": platform.python_version()}
