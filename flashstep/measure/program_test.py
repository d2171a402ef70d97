"""flashstep info and flashstep plot, held against Python's own JSON and XML parsers."""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments, cwd=None, cache=None):
    environment = dict(os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {}))
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=cwd,
                          env=environment)


def write_run(folder, steps, every=10):
    folder.mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            entry = {"step": step, "loss": 9 / math.sqrt(step), "lr": 1e-3}
            if step % 97 == 0:
                entry["loss"] = None
            if step % every == 0:
                entry.update(val_loss=9 / math.sqrt(step) + 0.1, bigram_loss=3.4)
            file.write(json.dumps(entry) + "\n")
        file.write('{"step": 1234, "lo')  # torn by a kill


class InfoTest(unittest.TestCase):
    def test_json_and_text(self):
        with tempfile.TemporaryDirectory() as cache:
            result = run("info", "--json", cache=cache)
            self.assertEqual(result.returncode, 0, result.stderr)
            info = json.loads(result.stdout)
            self.assertGreaterEqual(info["cores"], 1)
            self.assertTrue(info["libtorch"].startswith("2.11"))
            rates = {limit["limit"]: limit["rate"] for limit in info["limits"] if limit["device"] == "cpu"}
            self.assertEqual(sorted(rates), ["matmul bf16", "matmul fp16", "matmul fp32", "memory triad"])
            self.assertTrue(all(rate > 1e7 for rate in rates.values()), rates)
            links = [limit["rate"] for limit in info["limits"] if limit["device"] == "link"]
            self.assertGreaterEqual(len(links), 1, "the loopback, and what is between GPUs")
            self.assertTrue(all(rate > 1e7 for rate in links), links)
            if not any(limit["busy"] for limit in info["limits"]):  # then it was kept: the same numbers to the last digit
                self.assertEqual(len(list(Path(cache).glob("flashstep/machine-*.json"))), 1)
                self.assertEqual(json.loads(run("info", "--json", cache=cache).stdout), info)
            text = run("info", cache=cache).stdout
            for word in (info["processor"], "matmul fp32", "GFLOP/s", "memory triad", "loopback"):
                self.assertIn(word, text)


class PlotTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def check_svg(self, path):
        text = path.read_text()
        root = ElementTree.fromstring(text)
        self.assertEqual(root.tag, SVG + "svg")
        self.assertIsNone(re.search(r"\b(nan|inf)\b", text))
        self.assertNotIn("http", text.replace("http://www.w3.org/2000/svg", ""))  # self-contained
        return "\n".join("".join(element.itertext()) for element in root.iter(SVG + "text"))

    def test_one_run(self):
        write_run(self.path / "a <b> & \"c\"", 500)
        result = run("plot", self.path / "a <b> & \"c\"")
        self.assertEqual(result.returncode, 0, result.stderr)
        stem = self.path / "a <b> & \"c\"" / "loss"
        text = self.check_svg(stem.with_suffix(".svg"))
        for words in ("a <b> & \"c\"", "held-out", "bigram model 3.400", "step 500"):
            self.assertIn(words, text)
        if "no PNG" not in result.stdout:
            self.assertEqual(stem.with_suffix(".png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_several_runs_and_fields(self):
        write_run(self.path / "x" / "run", 1)
        write_run(self.path / "y" / "run", 30000)
        write_run(self.path / "z", 5)
        result = run("plot", "x/run", "y/run", "z", "--out", "sub/all.svg", "--log-x", "--log-y", cwd=self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = self.check_svg(self.path / "sub" / "all.svg")
        for words in ("x/run", "y/run", "z", "3 runs"):
            self.assertIn(words, text)
        self.assertLess((self.path / "sub" / "all.svg").stat().st_size, 300_000)
        result = run("plot", "z", "--field", "lr", "--title", "Schedule", cwd=self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Schedule", self.check_svg(self.path / "z" / "lr.svg"))

    def test_files_of_others_in_a_run_stay(self):
        write_run(self.path / "z", 5)
        for name in ("lr.svg", "lr.png"):
            (self.path / "z" / name).write_text("mine")
            result = run("plot", "z", "--field", "lr", cwd=self.path)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(f"z/{name}", result.stderr)
            self.assertEqual((self.path / "z" / name).read_text(), "mine")
            (self.path / "z" / name).unlink()
        for _ in range(2):  # the second picture replaces the first
            result = run("plot", "z", "--field", "lr", cwd=self.path)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_mistakes(self):
        write_run(self.path / "z", 5)
        (self.path / "noise").mkdir()
        (self.path / "noise" / "metrics.jsonl").write_text('{"step": 1}\nnoise\n')
        for arguments, words in ((["plot"], "RUN"), (["plot", "missing"], "missing"),
                                 (["plot", "noise"], "line 2"), (["plot", "z", "--field", "x"], '"x"'),
                                 (["plot", "z", "--out", "z/"], "z/")):
            result = run(*arguments, cwd=self.path)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(words, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
