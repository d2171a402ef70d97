"""flashstep report as a command: results that are kept, redrawn, compared; mistakes and interruptions."""
import csv
import json
import re
import signal
import subprocess
import time
import unittest
from html.parser import HTMLParser

import browser
from program import Command, FolderTest

run = Command("report")


class Balance(HTMLParser):
    """Whether what is opened is closed."""
    VOID = {"meta", "link", "br", "hr", "img", "input"}

    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append((tag, self.getpos()))


class ReportTest(FolderTest):
    def test_account_and_back(self):
        self.path /= "new"
        result = run.well("--only", "account", "--no-pdf", "--out", self.path)
        self.assertIn("1 measured, 0 taken from earlier", result.stdout)
        self.assertIn("takes 3,517.6 GB", result.stderr, "told at once")
        html = (self.path / "report.html").read_text()
        self.assertIn("communication_accounting (a)", html)
        self.assertIn("takes 3,517.6 GB", html)
        self.assertNotIn("flashstep report --preset", html)
        balance = Balance()
        balance.feed(html)
        self.assertEqual(balance.wrong, [])
        self.assertEqual(balance.open, [])
        for form in ("csv", "md", "json"):
            self.assertTrue(list((self.path / "tables").glob(f"*.{form}")), form)
        for file in (self.path / "tables").glob("*.csv"):
            origin, *lines = file.read_text().splitlines()
            self.assertRegex(origin, r"^# flashstep account; .*; .*sources [0-9a-f]{10}; 20")
            self.assertFalse([line for line in lines if "#" in line], "a reader of comments would cut it there")
            table = json.loads(file.with_suffix(".json").read_text())
            self.assertEqual(len(list(csv.DictReader(lines))), len(table["rows"]), file)
            self.assertEqual(table["notes"][-1], origin[2:])
        stored = json.loads(next((self.path / "results").glob("*.json")).read_text())
        self.assertEqual(stored["made"]["command"], "flashstep account")
        self.assertRegex(stored["made"]["version"], "sources [0-9a-f]{10}")

        again = run("--only", "account", "--no-pdf", "--out", self.path)
        self.assertIn("0 measured, 1 taken from earlier", again.stdout)
        (self.path / "report.html").unlink()
        begin = time.monotonic()
        run.well("--redraw", "--no-pdf", "--out", self.path)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual((self.path / "report.html").read_text(), html)
        run.well("--redraw", "--all-sections", "--no-pdf", "--out", self.path)
        self.assertIn("flashstep report --preset", (self.path / "report.html").read_text())

        for name in ("report.json", "report.html", "report.md"):  # of results that were copied alone
            (self.path / name).unlink()
        for _ in range(2):
            run.well("--redraw", "--no-pdf", "--out", self.path)

        compared = run.well("compare", self.path, self.path)
        self.assertIn("0 of 0 numbers with a spread", compared.stdout)

    @unittest.skipUnless(browser.chromium(), "no chromium in PATH")
    def test_the_buttons_show_the_part_of_their_year(self):
        (self.path / "results").mkdir()
        names = ("model", "context", "precision", "attention", "mode", "warm-up", "mean", "deviation", "forward",
                 "backward")
        columns = [{"name": name, "unit": "", "align": "left", "style": "fixed", "digits": 0} for name in names]
        for year, context in (("2024", 128), ("2026", 512)):
            table = {"title": "", "columns": columns, "notes": [],
                     "rows": [["small", context, "fp32", "auto", "step", 5, 30, 1, 10, 20]]}
            made = {"command": "flashstep bench step", "machine": "m", "driver": "", "version": "v", "clocks": "",
                    "measured_at": "2026-11-21 12:00:00 UTC", "seconds": 1}
            stored = {"format": 1, "measurement": f"step_{year}", "section": "step", "key": "0", "made": made,
                      "trouble": "", "tables": [{"name": "step", "table": table}], "pictures": [], "files": []}
            (self.path / "results" / f"step_{year}-0.json").write_text(json.dumps(stored))
        (self.path / "report.json").write_text(json.dumps({"preset": "all", "only": ["step"], "left_out": []}))
        run.well("--redraw", "--no-pdf", "--out", self.path)
        page = self.path / "clicked.html"
        page.write_text((self.path / "report.html").read_text().replace("</body>", "<script>" + browser.TELL + """
          const seen = {};
          for (const button of document.querySelectorAll('button[data-year]')) {
            button.click();
            const parts = Array.from(document.querySelectorAll('.part')).filter(part => part.dataset.years);
            seen[button.dataset.year] = parts.filter(part => part.offsetHeight > 0).map(part => part.innerText)
              .filter(text => text.includes('forward pass takes 10.0 ms')).map(text => text.match(/context \\d+/)[0]);
          }
          tell(seen);</script></body>"""))
        both = ["context 512", "context 128"]
        self.assertEqual(browser.told_by(page),
                         {"": both, "2024": ["context 128"], "2026": ["context 512"]})

    def test_damaged_results_are_named_and_kept(self):
        run.well("--only", "account", "--no-pdf", "--out", self.path)
        (self.path / "results" / "other-0123.json").write_text("{\"format\": 1,")
        (self.path / "results" / "newer-0123.json").write_text("{\"format\": 99}")
        redrawn = run("--redraw", "--no-pdf", "--out", self.path)
        self.assertEqual(redrawn.returncode, 2, redrawn.stderr)
        self.assertEqual(len(redrawn.stderr.strip().splitlines()), 1, redrawn.stderr)
        self.assertIn("[report] 2 of the files in ", redrawn.stderr)
        self.assertIn("other-0123.json", redrawn.stdout)
        self.assertIn("it has format 99, this program reads 1", redrawn.stdout)
        self.assertTrue((self.path / "results" / "other-0123.json").exists())
        self.assertIn("communication_accounting", (self.path / "report.html").read_text())
        run.well("--only", "account", "--no-pdf", "--out", self.path)  # what a run needs of them it measures

    def test_interruption_keeps_what_is_done(self):
        process = subprocess.Popen(run.line("--only", "account,attention", "--no-pdf", "--out", self.path),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not (self.path / "logs").exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("the same command goes on", errors)
        self.assertTrue((self.path / "report.html").exists())
        self.assertFalse(re.search("failed", output), output)


if __name__ == "__main__":
    unittest.main()
