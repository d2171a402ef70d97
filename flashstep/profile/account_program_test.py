"""flashstep account and precision as commands: files, flags, exit codes."""
import csv
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from program import PROGRAM, SOURCE, Command

run = Command()
TOPICS = ("step", "block", "attention", "sharding", "ring", "mesh", "bounds", "recompute")


def values(folder, topic):
    with open(Path(folder) / f"account_{topic}.csv", newline="") as file:
        return {row["quantity"]: row["value"] for row in csv.DictReader(file)}


class AccountTest(unittest.TestCase):
    def test_all_topics(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("account", "--out", Path(folder) / "new")
            self.assertEqual(result.returncode, 0, result.stderr)
            for topic in TOPICS:
                table = json.loads((Path(folder) / "new" / f"account_{topic}.json").read_text())
                self.assertGreater(len(table["rows"]), 0, topic)
                self.assertGreater(len(table["notes"]), 0, topic)
                self.assertIn(table["title"], result.stdout)

    def test_topics_are_listed_without_a_topic(self):
        listed = run("account").stdout
        for topic in (*TOPICS, "all"):
            self.assertRegex(listed, rf"(?m)^  flashstep account {topic} +[A-Z]")
        everything = run("account", "all").stdout
        self.assertEqual(everything.count("\nLetters: "), 3)
        # One style of numbers: no count of five digits without separators.
        self.assertNotRegex(everything, r"(?<![\d.,e])\d{5,}(?![\d.])")
        environment = dict(os.environ, COLUMNS="70")
        narrow = subprocess.run([PROGRAM, "account", "step"], capture_output=True, text=True, env=environment).stdout
        self.assertLessEqual(max(map(len, narrow.splitlines())), 80)  # the title is one line
        self.assertLessEqual(max(len(line) for line in narrow.splitlines()[1:]), 70)
        self.assertEqual(narrow.split(), run("account", "step").stdout.split())

    def test_inputs_are_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("account", "mesh", "--d-model", 100, "--d-ff", 200, "--blocks", 10, "--gpu-gb", 0.003,
                         "--limit-gb", 0.001, "--flops", 1000, "--bandwidth", 10, "--x", 4, "--y", 1, "--mx", 1,
                         "--tokens", 0, "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            mesh = values(folder, "mesh")
            self.assertEqual(float(mesh["parameters"]), 10 * 2 * 100 * 200)
            self.assertEqual(float(mesh["accelerators of 0.003 GB"]), 3)  # 6.4 MB in 3 MB each
            self.assertEqual(float(mesh["N_FSDP for less than 0.001 GB"]), 7)
            self.assertEqual(float(mesh["least batch, axes at once"]), 4 * 1000 / 10)
            result = run("account", "step", "--size", "small", "--layers", 2, "--batch", 1, "--context", 8,
                         "--mode", "forward", "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            step = values(folder, "step")
            block = 4 * 768 ** 2 + 3 * 768 * 3072 + 2 * 768
            self.assertEqual(float(step["parameters"]), 2 * 10000 * 768 + 2 * block + 768)

    def test_plan(self):
        """Of a run on GPUs that are not here; the table names what fits, and what does not."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("plan", SOURCE / "configs/8B.json", "--card", "H200", "--ranks", 2,
                         "--set", "parallel.shard_optimizer=full", "--set", "train.moments=bf16")
            result = run("account", *arguments, "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stdout, r"Recommended: train\.recompute inner, train\.recompute_blocks \d+ "
                                            r"\(the config has none, which does not fit\)\.")
            with open(Path(folder) / "account_plan.csv", newline="") as file:
                rows = {row["train.recompute"]: row for row in csv.DictReader(file)}
            some = next(name for name in rows if name.startswith("inner, first"))
            self.assertEqual({name: row["fits"] for name, row in rows.items()},
                             {"none": "no", "norms": "no", "inner": "yes", "block": "yes", some: "yes"})
            steps = [float(rows[name]["step (ms)"]) for name in (some, "inner", "block")]
            self.assertEqual(steps, sorted(steps))
            parts = json.loads((Path(folder) / "account_plan_memory.json").read_text())["rows"]
            for level in range(1, 6):
                self.assertAlmostEqual(sum(part[level] for part in parts[:-1]), parts[-1][level])
            half = run("account", *arguments, "--memory", "60GiB")
            self.assertIn("Nothing fits in 60.0 GiB", half.stdout)

    def test_numbers_too_large_to_count(self):
        largest = 1 << 30
        wide = ("--d-model", largest, "--d-ff", largest, "--heads", 1 << 20, "--layers", largest, "--vocab", largest)
        for arguments in (
            ("step", "--d-model", 100000000, "--heads", 100, "--d-ff", 100000000, "--layers", 1000),
            ("step", *wide), ("block", *wide), ("sharding", *wide),
            ("attention", "--batch", 1 << 40, "--heads", 1 << 40),
            ("attention", "--context", 1 << 40),
            ("attention", "--head-dim", 1 << 62),
            ("mesh", "--blocks", 1 << 62),
            ("mesh", "--gpu-gb", 1e-300),
            ("mesh", "--limit-gb", 1e-300, "--tokens", 0),
        ):
            result = run("account", *arguments)
            self.assertEqual(result.returncode, 2, f"{arguments}: {result.stdout[-300:]}")
            self.assertIn("at most 9e18", result.stderr)
        large = run("account", "step", "--d-model", 1 << 20, "--heads", 100 << 10, "--d-ff", 1 << 22, "--layers", 10000)
        self.assertEqual(large.returncode, 2, large.stderr)  # heads do not divide
        large = run("account", "step", "--d-model", 1 << 20, "--heads", 1 << 10, "--d-ff", 1 << 22, "--layers", 10000)
        self.assertEqual(large.returncode, 0, large.stderr)
        self.assertIn(f"{10000 * 16 * 2 ** 40 + 10000 * 2 ** 21 + 2 ** 20 + 2 * 10000 * 2 ** 20:,}", large.stdout)


class PrecisionTest(unittest.TestCase):
    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("precision", "--size", "32/64/1/2", "--context", 16, "--batch", 2, "--warmup", 1,
                         "--steps", 2, "--norm-width", 64, "--device", "cpu", "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("9.9531", result.stdout)
            for part in ("accumulation", "dtypes", "norms", "sizes", "sizes_runs"):
                table = json.loads((Path(folder) / f"precision_{part}.json").read_text())
                self.assertGreater(len(table["rows"]), 0, part)

    def test_all_sizes(self):
        """Too long a context: what all means, and nothing is measured."""
        with tempfile.TemporaryDirectory() as folder:
            result = run("precision", "--only", "sizes", "--size", "32/64/1/2,all", "--context", 16777216, "--batch",
                         1 << 20, "--device", "cpu", "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            table = json.loads((Path(folder) / "precision_sizes.json").read_text())
            self.assertEqual([row[0] for row in table["rows"]],
                             ["32/64/1/2", "small", "medium", "large", "xl", "2.7B"])
            self.assertEqual({row[1] for row in table["rows"]}, {"OOM"})
        self.assertTrue(any("GiB are needed" in note for note in table["notes"]), table["notes"])

    def test_only(self):
        result = run("precision", "--only", "accumulation")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("10.0021", result.stdout)
        self.assertNotIn("LayerNorm", result.stdout)


if __name__ == "__main__":
    unittest.main()
