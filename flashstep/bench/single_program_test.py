"""Benchmarks of one process as commands: a model by its numbers, and PyTorch beside ours."""
import importlib.util
import os
import subprocess
import sys
import sysconfig
import unittest
from pathlib import Path

from program import SOURCE, Command, FolderTest, column, rows_of

run = Command("bench")
SCRIPTS = SOURCE / "scripts"


def peer(script):
    return ("--peer-script", SCRIPTS / "peers" / script, "--python", SCRIPTS / "python")


class BenchSingleTest(FolderTest):
    def test_hyper_parameters_by_hand(self):
        run.well("step", "--device", "cpu", "--size", "small", "--layers", 1, "--d-model", 48, "--d-ff", 80, "--heads", 3,
                 "--vocab", 100, "--context", 8, "--batch", 3, "--steps", 2, "--warmup", "0,1", "--out", self.path)
        self.assertEqual(len(rows_of(self.path / "step.csv")), 2 + 3, "every single step")
        self.assertTrue(list(self.path.glob("step_warmup_48-80-1-3_n8_fp32_auto_*.svg")), list(self.path.iterdir()))
        table = self.table("step")
        self.assertEqual(column(table, "model"), ["48/80/1/3"] * 2)
        # Embedding and head, four (C, C), three (C, F), three norms.
        parameters = 2 * 100 * 48 + 4 * 48 * 48 + 3 * 48 * 80 + 3 * 48
        self.assertAlmostEqual(column(table, "parameters")[0], parameters / 1e6)
        self.assertEqual((column(table, "batch"), column(table, "context")), ([3, 3], [8, 8]))

    def test_files_of_others_are_not_overwritten(self):
        small = ("norm", "--device", "cpu", "--rows", 20, "--width", 32, "--calls", 1, "--implementations", "flashstep",
                 "--out", self.path)
        for name in ("norm.md", "norm.json", "norm.csv"):
            file = self.path / name
            file.write_text("mine")
            result = run(*small)
            self.assertEqual((result.returncode, file.read_text()), (2, "mine"), result.stderr)
            self.assertIn(f"expected {file} to be missing, or written by flashstep", result.stderr)
            self.assertEqual(result.stdout, "", "refused before the work")
            file.unlink()
        run.well(*small)
        run.well(*small)  # its own it writes anew

    def test_limits_that_were_measured_beside_others(self):
        busy = [sys.executable, "-c", "while True: pass"]
        others = [subprocess.Popen(busy) for _ in os.sched_getaffinity(0)]
        try:
            output = run.well("norm", "--device", "cpu", "--rows", 50, "--width", 32, "--calls", 3, "--implementations",
                              "flashstep", env=dict(os.environ, XDG_CACHE_HOME=str(self.path))).stdout
        finally:
            for other in others:
                other.kill()
                other.wait()
        self.assertEqual(" ".join(output.split()).count("while the limits of this machine were measured: they are too low"), 1)
        self.assertEqual(list(self.path.glob("flashstep/*")), [])

    def test_a_tokenizer_away_from_the_peers_names_what_is_missing(self):
        small = ("tokenizer", "--megabytes", 1, "--encode-megabytes", 1, "--memory-megabytes", 0, "--vocab-size", 300,
                 "--repeats", 1)
        words = " ".join(run.well(*small, cwd=self.path).stdout.split())
        self.assertIn("no peer to compare with (there is no scripts/peers/tokenizer_peers.py)", words)
        self.assertNotIn("bootstrap", words)

    def test_a_tokenizer_makes_its_directory_before_the_work(self):
        stem = self.path / "new" / "here"
        small = ("tokenizer", "--megabytes", 1, "--encode-megabytes", 1, "--memory-megabytes", 0, "--vocab-size", 300,
                 "--repeats", 1, "--peers", "", "--out")
        run.well(*small, stem)
        self.assertEqual({path.name for path in stem.parent.iterdir()}, {f"here.{form}" for form in ("txt", "md", "csv", "json")})
        (self.path / "file").write_text("mine")
        result = run(*small, self.path / "file" / "here")
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertNotIn("gathering", result.stderr, "refused before the work")

    def test_a_tokenizer_beside_a_peer_that_goes_on_talking(self):
        peers = self.path / "peers.sh"
        peers.write_text('[ "$1" = encode ] && : > "$5"\n' "echo 1.5; head -c 300000 /dev/zero | tr '\\0' '\\n'\n")
        output = run.well("tokenizer", "--megabytes", 1, "--encode-megabytes", 1, "--memory-megabytes", 0, "--vocab-size",
                          300, "--repeats", 1, "--python", "sh", "--peers", peers).stdout
        self.assertIn("Peers: 1.5.", output)

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "this Python has no torch")
    def test_steps_beside_pytorch(self):
        result = run.well("step", "--device", "cpu", "--size", "32/64/2/2", "--vocab", 64, "--context", 16,
                          "--batch", 2, "--peers", "eager", "--turns", 2, "--steps", 2, "--mode", "forward,step",
                          "--precision", "fp32,bf16", *peer("step_torch.py"), "--out", self.path)
        table = self.table("step")
        self.assertTrue(all(value > 0 for value in column(table, "x eager")), table["notes"])
        self.assertTrue(all(value < 0.1 for value in column(table, "gradient error") if value is not None))
        theirs = [row for row in rows_of(self.path / "step.csv") if row["who"] == "eager"]
        self.assertEqual(len(theirs), 4 * 2 * 2)
        for row in theirs:
            self.assertEqual(row["optimizer (ms)"] != "", row["mode"] == "step", row)
        self.assertIn("times the speed of eager", result.stdout)

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "this Python has no torch")
    @unittest.skipUnless(Path(sysconfig.get_paths()["include"], "Python.h").exists(),
                         "torch.compile needs Python's headers (python3-dev)")
    def test_a_norm_beside_the_compiled_one(self):
        result = run.well("norm", "--device", "cpu", "--rows", 200, "--width", 48, "--implementations", "naive,compiled",
                          "--calls", 5, *peer("ops_torch.py"), "--out", self.path)
        compiled = [row for row in rows_of(self.path / "norm.csv") if row["implementation"] == "compiled"]
        self.assertEqual(len(compiled), 2)
        for row in compiled:
            self.assertGreater(float(row["median (ms)"]), 0, result.stdout)
            self.assertLess(float(row["error"]), 1e-5)
        self.assertLess(float(compiled[1]["gradient error"]), 1e-4)


if __name__ == "__main__":
    unittest.main()
