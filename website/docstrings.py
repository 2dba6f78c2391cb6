"""Docstrings as the site reads them: what a doctest shows is code, and arguments that share a line get one each."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*)*", re.MULTILINE)
_SHARED = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+)(?P<text>: .*(?:\n(?P=indent) +.*)*)", re.MULTILINE)


class Docstrings(Extension):
    """What the reader of Google docstrings does not know of ours."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = apart(fenced(obj.docstring.value))


def fenced(text: str) -> str:
    """Fences around the lines of a doctest, up to the next empty line.

    >>> fenced("Twice:\\n\\n>>> 2 * 2\\n4")
    'Twice:\\n\\n```pycon\\n>>> 2 * 2\\n4\\n```'
    """
    return _DOCTEST.sub(lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", text)


def apart(text: str) -> str:
    """
    >>> apart("Args:\\n    low, high: ends,\\n        in nats.")
    'Args:\\n    low: ends,\\n        in nats.\\n    high: ends,\\n        in nats.'
    """
    return _SHARED.sub(
        lambda found: "\n".join(found["indent"] + name + found["text"] for name in found["names"].split(", ")), text
    )
