"""flashstep report --preset quick as a whole: every section, every answer a CPU can give; the page in a browser."""
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
# Sections without a row on a machine without GPUs, and questions that nothing answers there.
NO_GPU_SECTIONS = {"leaderboard"}
UNANSWERED = {"torch_compile (a)", "torch_compile (b)", "rmsnorm", "leaderboard", "fsdp", "fsdp_accounting (b)",
              "distributed_communication_multi_node"}


def chromium():
    named = os.environ.get("FLASHSTEP_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browser(*arguments):
    """Chromium without a window and without a network: whatever it asks for goes to a closed port."""
    with tempfile.TemporaryDirectory() as state:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        return subprocess.run(
            [chromium(), "--headless", "--disable-gpu", *sandbox, f"--user-data-dir={state}", "--enable-logging=stderr",
             "--v=0", "--proxy-server=127.0.0.1:9", "--disable-background-networking", *arguments],
            capture_output=True, text=True, timeout=120)


class QuickReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        kept = os.environ.get("FLASHSTEP_QUICK_REPORT")  # a report that is there: for work on these tests
        cls.folder = None if kept else tempfile.TemporaryDirectory()
        cls.path = Path(kept) if kept else Path(cls.folder.name) / "report"
        if not kept:
            cls.result = subprocess.run([PROGRAM, "report", "--preset", "quick", "--no-pdf", "--out", cls.path],
                                        capture_output=True, text=True, timeout=850)
        cls.markdown = (cls.path / "report.md").read_text() if (cls.path / "report.md").exists() else ""

    @classmethod
    def tearDownClass(cls):
        if cls.folder:
            cls.folder.cleanup()

    def setUp(self):
        if self.folder:
            self.assertEqual(self.result.returncode, 0, self.result.stdout + self.result.stderr)

    def results(self):
        return [json.loads(path.read_text()) for path in sorted((self.path / "results").glob("*.json"))]

    def test_every_section_has_a_table_with_rows(self):
        sections = {result["section"] for result in self.results()}
        titles = set(re.findall("^## (.*)$", self.markdown, re.M))
        self.assertGreaterEqual(len(titles), 13)
        self.assertEqual(len(sections | NO_GPU_SECTIONS), len(titles))
        for result in self.results():
            self.assertEqual(result["trouble"], "", result["measurement"])
            self.assertTrue(result["tables"], result["measurement"])
            for table in result["tables"]:
                self.assertTrue(table["table"]["rows"], (result["measurement"], table["name"]))

    def test_every_question_a_cpu_can_answer_is_answered(self):
        missing = set()
        for block in re.split("^### ", self.markdown, flags=re.M)[1:]:
            if "\nNot measured: " in block:
                missing.add(re.sub(r" \[.*", "", block.splitlines()[0]))
        self.assertEqual(missing - UNANSWERED, set())

    def test_figures_say_where_they_come_from(self):
        for result in self.results():
            made = result["made"]
            self.assertTrue(made["command"].startswith("flashstep "))
            self.assertTrue(made["machine"])
            self.assertRegex(made["version"], "sources [0-9a-f]{10}")
            self.assertIn(f"`{made['command']}`", self.markdown)

    def test_every_picture_and_table_is_a_file(self):
        for name in re.findall(r"\]\((pictures/[^)]*)\)", self.markdown):
            self.assertTrue((self.path / name).exists(), name)
        html = (self.path / "report.html").read_text()
        self.assertEqual(len(re.findall("<figure ", html)), len(list((self.path / "pictures").glob("*.svg"))))
        for name in re.findall(r'href="(tables/[^"]*)"', html):
            self.assertTrue((self.path / name).exists(), name)

    @unittest.skipUnless(chromium(), "no chromium in PATH")
    def test_a_browser_shows_it_without_errors_or_network(self):
        page = (self.path / "report.html").read_text()
        # After the page's own script: sort the first table both ways, switch the theme, and tell what there is.
        probe = """<script>
          const first = document.querySelector('th'); first.click(); first.click();
          document.getElementById('theme').click();
          const seen = {tables: document.querySelectorAll('table').length,
            pictures: document.querySelectorAll('figure > svg').length,
            sorted: first.getAttribute('aria-sort'), theme: document.documentElement.dataset.theme,
            requests: performance.getEntriesByType('resource').map(entry => entry.name),
            broken: Array.from(document.querySelectorAll('figure > svg')).filter(
              svg => svg.getBoundingClientRect().width < 10).length};
          document.title = 'seen ' + btoa(JSON.stringify(seen));
        </script></body>"""
        shown = self.path / "shown.html"
        shown.write_text(page.replace("</body>", probe))
        self.addCleanup(shown.unlink)
        for width in (1400, 390):
            result = browser(f"--window-size={width},900", "--dump-dom", shown.as_uri())
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("CONSOLE", result.stderr)
            seen = json.loads(base64.b64decode(re.search("<title>seen ([^<]*)</title>", result.stdout)[1]))
            self.assertEqual(seen["tables"], page.count("<table "))
            self.assertEqual(seen["pictures"], page.count("<figure "))
            self.assertEqual((seen["sorted"], seen["requests"], seen["broken"]), ("descending", [], 0))
            self.assertIn(seen["theme"], ("dark", "light"))

    @unittest.skipUnless(chromium(), "no chromium in PATH")
    def test_it_is_printed(self):
        result = subprocess.run([PROGRAM, "report", "--redraw", "--out", self.path], capture_output=True, text=True,
                                timeout=280)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.path / "report.pdf").read_bytes().startswith(b"%PDF-"), result.stdout)


if __name__ == "__main__":
    if not chromium():
        print("no chromium in PATH: the page is not opened in a browser", file=sys.stderr)
    unittest.main()
