"""flashstep.report: the tables, pictures and curves that this repository keeps in reports/."""

import importlib.util
import json
import math
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

import needs_torch  # noqa: F401

import flashstep
from flashstep import report

REPORTS = Path(__file__).resolve().parents[2] / "reports"
HANDOUT = REPORTS / "report_h200_2026-11-22"
RUN = REPORTS / "quickstart_zen3"


OLD_NAMES = {"contestant": "implementation"}  # of a column in stored results


def head_of(column):
    return f"{column['name']} ({column['unit']})" if column["unit"] else column["name"]


class Reports(unittest.TestCase):
    def check_table(self, table, stored):
        heads = [OLD_NAMES.get(head, head) for head in map(head_of, stored["columns"])]
        self.assertEqual([OLD_NAMES.get(head, head) for head in table], heads)
        for cells, expected in zip(table.values(), zip(*stored["rows"])):
            for cell, other in zip(cells, expected, strict=True):
                if isinstance(other, dict):
                    self.assertEqual(str(cell), other["number"])
                else:
                    self.assertEqual(cell, other)
        self.assertEqual((table.title, table.notes), (stored["title"], stored["notes"]))
        self.assertTrue(str(table).startswith(stored["title"]))

    def test_results_of_a_report(self):
        reports = report.results(HANDOUT)
        stored = [json.loads(path.read_text()) for path in sorted(HANDOUT.glob("results/*.json"))]
        self.assertEqual(list(reports), [result["measurement"] for result in stored])
        for result in stored:
            one = reports[result["measurement"]]
            self.assertEqual(one.about["command"], result["made"]["command"])
            for named in result["tables"]:
                self.check_table(one.tables[named["name"]], named["table"])
            self.assertEqual(list(one.pictures), [picture["name"] for picture in result["pictures"]])
            for picture in one.pictures.values():
                self.assertTrue(xml.etree.ElementTree.fromstring(picture._repr_svg_()).tag.endswith("}svg"))
        self.assertGreater(sum(len(one.tables) for one in reports.values()), 20)

    def test_tables_that_a_command_wrote(self):
        paths = [path for path in REPORTS.rglob("*.json") if path.read_text().startswith('{\n  "title":')]
        self.assertGreaterEqual(len(paths), 6)
        for path in paths:
            one = report.read(path)
            self.assertEqual(list(one.tables), [path.stem])
            self.check_table(one.tables[path.stem], json.loads(path.read_text()))
        folder = report.read(REPORTS / "training_step_cpu")
        self.assertEqual(list(folder.tables), ["step"])
        self.assertEqual(folder.tables["step"], report.read(REPORTS / "training_step_cpu" / "step.json").tables["step"])
        self.assertIn(str(folder.tables["step"]), str(folder))
        self.assertTrue(folder._repr_html_().startswith("<pre>"))

    @unittest.skipUnless(importlib.util.find_spec("pandas"), "the Python package pandas is not there")
    def test_pandas(self):
        import pandas

        for one in report.results(HANDOUT).values():
            for table in one.tables.values():
                frame = pandas.DataFrame(table)
                self.assertEqual(list(frame.columns), list(table))
                self.assertEqual(len(frame), len(next(iter(table.values()))))

    def test_curves_of_a_run(self):
        lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
        curve = report.curve(RUN)
        self.assertEqual(curve["step"], [line["step"] for line in lines if "loss" in line])
        self.assertEqual(curve["loss"], [line["loss"] for line in lines if "loss" in line])
        self.assertEqual(report.curve(RUN, "lr")["lr"], [line["lr"] for line in lines if "lr" in line])
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "other"
            other.mkdir()
            (other / "metrics.jsonl").write_text('{"step": 0, "loss": 2.5}\n{"step": 1, "loss": null}\n')
            self.assertTrue(math.isnan(report.curve(other)["loss"][1]))
            both = report.plot([RUN, other])
            both.save(Path(folder) / "both.svg")
            self.assertEqual((Path(folder) / "both.svg").read_text(), both.svg)
        for picture, text in ((report.plot(RUN), RUN.name), (both, "2 runs"), (report.plot([RUN], "lr"), "learning")):
            shown = "".join(xml.etree.ElementTree.fromstring(picture._repr_svg_()).itertext())
            self.assertIn(text, shown)

    def test_mistakes_are_sentences(self):
        for call, text in (
            (lambda: report.results(RUN), "results of `flashstep report`"),
            (lambda: report.read(RUN / "no.json"), "No such file"),
            (lambda: report.read(RUN / "config.json"), "expected a table as JSON"),
            (lambda: report.read(HANDOUT / "results"), "expected tables or pictures"),
            (lambda: report.curve(HANDOUT), "metrics.jsonl"),
            (lambda: report.curve(RUN, "nonsense"), 'the field "nonsense"'),
            (lambda: report.plot(HANDOUT), "expected a run directory"),
            (lambda: report.trace(RUN / "metrics.jsonl"), r"\[trace\]"),
            (lambda: report.memory_snapshot(RUN / "metrics.jsonl"), "expected"),
            (lambda: flashstep.profiling.tables("/nonexistent"), "nonexistent"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                call()


if __name__ == "__main__":
    unittest.main()
