"""What the messages about tables share: rows, names, numbers, and the libraries of the extra `tables`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["listed", "option", "pandas", "plural", "rows_where", "similar"]


def pandas() -> Any:
    """The module pandas; ImportError names the extra."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables are read with pandas: pip install 'posterity[tables]'") from error
    return pandas


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "row"), plural(4812, "row")
    ('1 row', '4,812 rows')
    """
    return f"{count:,} {noun}{'s'[: count != 1]}"


def listed(names: Iterable[object], limit: int = 10) -> str:
    """Quoted names, the first `limit` of them.

    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    names = list(names)
    more = f", ... ({len(names):,} in all)" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more


def rows_where(bad: Any) -> str:
    """The rows where `bad` holds, counted from 0: "2 rows (rows 3, 8, counted from 0)"."""
    rows: NDArray[np.int64] = np.flatnonzero(np.asarray(bad))
    named = ", ".join(str(row) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
    return f"{plural(len(rows), 'row')} ({'rows' if len(rows) != 1 else 'row'} {named}, counted from 0)"


def similar(name: str, known: Sequence[str]) -> str:
    """A hint at the known name that is most like `name`, or nothing.

    >>> similar("Age", ["age", "sex"]), similar("x", ["age"])
    ("; did you mean 'age'?", '')
    """
    lower = {other.lower(): other for other in reversed(known)}
    near = difflib.get_close_matches(name.lower(), list(lower), 1, 0.6)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""


def option(flag: str, value: str) -> str:
    """An option to paste into a shell, quoted where the shell needs it.

    >>> option("--drop", "note"), option("--drop", "my note")
    ('--drop note', "--drop 'my note'")
    """
    import shlex

    return f"{flag} {shlex.quote(value)}"
