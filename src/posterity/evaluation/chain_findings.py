"""What chains suffer from, in plain sentences, and the tables of chains that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posterity.evaluation.chains import GOOD, ChainDiagnostics, chain_diagnostics
from posterity.evaluation.details import Detail
from posterity.evaluation.finding import Finding
from posterity.evaluation.metric import Metric
from posterity.posterior.chains import Chains

__all__ = ["chain_details", "chain_findings"]

_ROWS = 2000  # of an evaluation that chains are judged on
_KINETIC = (0.9, 1.1)  # of the temperature asked for
_SETTLED = 0.5  # of the functionals of a chain
_CLAMPED = 0.1  # of the weights


def chain_findings(found: ChainDiagnostics) -> list[Finding]:
    """Lost chains, kinetic temperature, R-hat within chains, and the share of weights whose noise is not corrected."""
    return [_lost(found), _kinetic(found), _settled(found), _noise(found)]


def chain_details(model: Any, data: Any, via: str) -> dict[str, Detail]:
    """The details of an evaluated model that has chains, from its first 2000 rows: {} for others.

    chains (a row per chain, see `ChainDiagnostics.table`), trace, chain_numbers (name, value, low, high, n, reason),
    chain_findings (check, status, message, remedy).
    """
    chains = isinstance(getattr(model, "posterior", None), Chains)
    if via != "draws" or not chains or hasattr(data, "__next__"):  # what can be read once only is used up by now
        return {}
    found = chain_diagnostics(model, data, rows=_ROWS)
    names = ("check", "status", "message", "remedy")
    findings = [each.to_json() for each in chain_findings(found)]
    told: dict[str, Detail] = {"chains": found.table}
    if found.trace["step"]:
        told["trace"] = found.trace
    told["chain_numbers"] = _numbers(found)
    told["chain_findings"] = {name: [each[name] for each in findings] for name in names}
    return told


def _numbers(found: ChainDiagnostics) -> Detail:
    rows = {"lppd": found.lppd, "gain": found.gain}
    single = {
        "between_rhat": found.between_rhat, "weight_rhat": found.weight_rhat, "mass_similarity": found.mass_similarity,
        **{f"noise_ratio_{name}": value for name, value in found.noise.items()}, "temperature": found.temperature,
        "friction": found.friction, "members": found.members, **found.steps,
    }  # fmt: skip
    told = {**{name: list(metric) for name, metric in rows.items()}}
    for name, value in single.items():
        told[name] = [value, None, None, None, found.reasons.get(name)]
    columns = list(zip(*([name, *values] for name, values in told.items())))
    return {name: list(column) for name, column in zip(("name", *Metric._fields), columns)}


def _lost(found: ChainDiagnostics) -> Finding:
    check, numbers = "lost chains", {"lost": dict(found.lost), "members": found.members}
    if not found.lost:
        return Finding(check, "ok", f"all {found.members} chains ran to the end", "", numbers)
    named = "; ".join(f"chain {member}: {reason}" for member, reason in found.lost.items())
    count = len(found.lost)
    message = f"{count} of {found.members} chains {'was' if count == 1 else 'were'} lost and left out ({named})"
    way = "try a smaller step_size; predictions use the chains that are left"
    return Finding(check, "fault" if 2 * count >= found.members else "warning", message, way, numbers)


def _kinetic(found: ChainDiagnostics) -> Finding:
    check = "kinetic temperature"
    at = _known(found, "kinetic_temperature")
    if not at:
        return Finding(check, "skipped", "the fit recorded no kinetic temperature")
    asked = found.temperature
    numbers = {"temperature": asked, "kinetic": {str(member): value for member, value in at}}
    hot = [pair for pair in at if pair[1] > _KINETIC[1] * asked]
    cold = [pair for pair in at if pair[1] < _KINETIC[0] * asked]
    if not hot and not cold:
        low, high = (end(value for _, value in at) for end in (min, max))
        return Finding(check, "ok", f"{low:.3f} to {high:.3f} over the chains, {asked:g} asked for", "", numbers)
    parts = [f"{_list(hot)} too hot"] * bool(hot) + [f"{_list(cold)} too cold"] * bool(cold)
    ways = ["try a longer warmup or a smaller step_size, and noise_correction=True where it is off"] * bool(hot)
    ways += ["try a longer warmup, or a smaller step_size: the noise correction takes away too much"] * bool(cold)
    message = f"{', '.join(parts)}, {asked:g} was asked for: draws spread {_spread(bool(hot), bool(cold))}"
    return Finding(check, "warning", message, "; ".join(ways), numbers)


def _spread(hot: bool, cold: bool) -> str:
    if hot and cold:
        return "more, or less, than the posterior"
    return f"{'more' if hot else 'less'} than the posterior"


def _settled(found: ChainDiagnostics) -> Finding:
    check = "R-hat within chains"
    at = _known(found, "rhat_share")
    if not at:
        return Finding(check, "skipped", found.reasons.get("rhat, ess", "nothing that a chain says varies"))
    numbers = {"share": {str(member): value for member, value in at}, "between": found.between_rhat}
    poor = [pair for pair in at if pair[1] < _SETTLED]
    if not poor:
        least = min(at, key=lambda pair: pair[1])
        message = f"R-hat is below {GOOD:g} for at least {least[1]:.0%} of the {found.functional} in every chain"
        return Finding(check, "ok", message, "", numbers)
    worst = min(poor, key=lambda pair: pair[1])
    message = (
        f"in {len(poor)} of {len(at)} chains R-hat is below {GOOD:g} for less than half of the {found.functional} "
        f"(fewest in chain {worst[0]}: {worst[1]:.0%}): they still drift"
    )
    way = "keep what raises LPPD: a longer warmup, a larger thin, or a larger step_size while the kinetic temperature stays"
    return Finding(check, "warning", message, way, numbers)


def _noise(found: ChainDiagnostics) -> Finding:
    check = "noise correction"
    if "clamped" not in found.noise:
        return Finding(check, "skipped", "no gradient-noise ratio was recorded")
    clamped, median = found.noise["clamped"], found.noise.get("0.5", float("nan"))
    numbers = dict(found.noise)
    share = f"{clamped:.1%} of the weights, median ratio {median:.2g}"
    message = f"gradient noise is more than the friction takes away in {share}"
    if clamped <= _CLAMPED:
        return Finding(check, "ok", message, "", numbers)
    way = "try a smaller step_size, more friction, or larger batches"
    return Finding(check, "warning", f"{message}: there it cannot be corrected, and the chains run hot", way, numbers)


def _known(found: ChainDiagnostics, column: str) -> list[tuple[int, float]]:
    """(member, value) where there is one."""
    return [pair for pair in zip(found.table["member"], found.table[column]) if pair[1] == pair[1]]


def _list(pairs: Sequence[tuple[int, float]], most: int = 4) -> str:
    named = ", ".join(f"{member} ({value:.2f})" for member, value in pairs[:most])
    more = f" and {len(pairs) - most} more" if len(pairs) > most else ""
    return f"chain{'s' if len(pairs) > 1 else ''} {named}{more}"
