"""The metrics of a run as JSON lines, one per step, which a resumed run continues where its checkpoint stands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO, Any

from rlx.errors import FormatError, TrainingError
from rlx.formats.mapped_file import replace_file

__all__ = ["Journal", "read_metrics"]

Row = dict[str, Any]


def read_metrics(path: Path) -> list[Row]:
    """The rows of a file; a last line that a killed run did not finish is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise FormatError(f"{path}: line {number} is not JSON: {line[:60]!r}") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise FormatError(f"{path}: line {number} must be an object with a step, got {line[:60]!r}")
        rows.append(row)
    return rows


def _line(row: Row) -> str:
    """JSON has no infinities and no NaN; they become null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"


class Journal:
    """Rows in memory, and in a file when there is one."""

    def __init__(self, path: Path | None, up_to: int) -> None:
        """Takes over the rows of the file up to that step; later ones will be made again."""
        self.rows: list[Row] = []
        self._file: IO[str] | None = None
        if path is None:
            return
        self.rows = [row for row in read_metrics(path) if row["step"] <= up_to]
        with replace_file(path) as file:
            file.write("".join(_line(row) for row in self.rows).encode())
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self._file is not None:
            try:
                self._file.write(_line(row))
                # What is handed to the system survives the end of this process.
                self._file.flush()
            except OSError as error:
                raise TrainingError(
                    f"{self._file.name}: metrics cannot be written: {error.strerror}. Make room and resume"
                ) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
