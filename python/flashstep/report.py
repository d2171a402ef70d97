"""What was measured, as tables for pandas and pictures for notebooks."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._library import report_operators
from ._tokenizer import Path, paths_of


class Table(dict[str, list[Any]]):
    """Columns by their heads, such as "time (ms)": `pandas.DataFrame(table)` takes it. Numbers are exact; None was not
    measured; a text such as "OOM" may stand in any column. Printed, it is the program's text."""

    title: str
    notes: list[str]
    _text: str

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Table:
        table = cls({head: [_cell(cell) for cell in cells] for head, cells in content["columns"].items()})
        table.title, table.notes, table._text = content["title"], content["notes"], content["text"]
        return table

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>"


def _cell(cell: Any) -> Any:
    return float(cell["number"]) if isinstance(cell, dict) else cell  # what is not finite


@dataclass(frozen=True, repr=False)
class Picture:
    """An SVG document, which a notebook shows."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: Path) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)


@dataclass(frozen=True, repr=False)
class Report:
    """Tables and pictures by name, and where they come from: command, machine, version. Printed, it is the program's
    text."""

    tables: dict[str, Table]
    pictures: dict[str, Picture]
    about: dict[str, str]
    _text: str

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Report:
        return cls(
            {name: Table._of(table) for name, table in content["tables"].items()},
            {name: Picture(svg) for name, svg in content["pictures"].items()},
            content["about"],
            content["text"],
        )

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text)}</pre>" + "".join(picture.svg for picture in self.pictures.values())


def read(path: Path) -> Report:
    """What a command of the program wrote by --out: a folder, or the .json of a table."""
    return Report._of(json.loads(report_operators().report_of_files(os.fspath(path))))


def results(folder: Path) -> dict[str, Report]:
    """What `flashstep report` keeps in a folder, by measurement; of each the latest that did not fail."""
    content = json.loads(report_operators().reports_of_results(os.fspath(folder)))
    return {name: Report._of(report) for name, report in content.items()}


def trace(chrome_trace: Path, *, top: int = 10) -> Report:
    """Of a trace that torch.profiler exported: time by pass, kernel, class of work, range and block. Passes are the
    ranges "forward", "backward" and "optimizer", steps "step" or those of torch's schedule; "warm-up" is left out.
    top: lines in the table of kernels, operators on a CPU."""
    return Report._of(json.loads(report_operators().report_of_trace(os.fspath(chrome_trace), top)))


def memory_snapshot(path: Path, *, largest: int = 15) -> Report:
    """Of a file of torch.cuda.memory._dump_snapshot or of the program: the peak, its largest allocations, memory over
    time."""
    return Report._of(json.loads(report_operators().report_of_snapshot(os.fspath(path), largest)))


def curve(run: Path, field: str = "loss") -> Table:
    """Steps and values of a run directory. field: loss, val_loss, grad_norm, lr, tokens_per_s, ..."""
    return Table._of(json.loads(report_operators().curve_of_run(os.fspath(run), field)))


def plot(runs: Path | Iterable[Path], field: str = "loss") -> Picture:
    """The curves of one run directory, or of several over each other."""
    return Picture(report_operators().plot_of_runs(paths_of(runs), field))
