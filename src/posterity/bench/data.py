"""Where the benches find data that are not ours to publish: the folder that POSTERITY_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

from posterity.errors import DataError

__all__ = ["data_folder"]


def data_folder(under: str, *files: str) -> Path:
    """The folder `under` of POSTERITY_DATA, which holds `files`.

    Raises:
        DataError: the variable is not set, or a file is missing.
    """
    root = os.environ.get("POSTERITY_DATA")
    if not root:
        raise DataError(
            "the data of the benches are found through the environment variable POSTERITY_DATA, which is not set: set it "
            f"to the folder that holds {under}"
        )
    folder = Path(root) / under
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise DataError(f"{folder} lacks {' and '.join(missing)}: point POSTERITY_DATA at a folder with {under}")
    return folder
