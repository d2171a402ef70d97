"""flashstep account and precision as commands: files, flags, exit codes."""
import os
import unittest

from program import SOURCE, Command, FolderTest, column, rows_of

run = Command()
TOPICS = ("step", "block", "attention", "sharding", "ring", "mesh", "bounds", "recompute")


class AccountTest(FolderTest):
    def values(self, topic):
        return {row["quantity"]: float(row["value"]) for row in rows_of(self.path / f"account_{topic}.csv")}

    def test_all_topics(self):
        printed = run.well("account", "--out", self.path / "new").stdout
        for topic in TOPICS:
            table = self.table(f"new/account_{topic}")
            self.assertGreater(len(table["rows"]), 0, topic)
            self.assertGreater(len(table["notes"]), 0, topic)
            self.assertIn(table["title"], printed)

    def test_topics_are_listed_without_a_topic(self):
        listed = run("account").stdout
        for topic in (*TOPICS, "all"):
            self.assertRegex(listed, rf"(?m)^  flashstep account {topic} +[A-Z]")
        everything = run("account", "all").stdout
        self.assertEqual(everything.count("\nLetters: "), 3)
        # One style of numbers: no count of five digits without separators.
        self.assertNotRegex(everything, r"(?<![\d.,e])\d{5,}(?![\d.])")
        narrow = run("account", "step", env=dict(os.environ, COLUMNS="70")).stdout
        self.assertLessEqual(max(map(len, narrow.splitlines())), 80)  # the title is one line
        self.assertLessEqual(max(len(line) for line in narrow.splitlines()[1:]), 70)
        self.assertEqual(narrow.split(), run("account", "step").stdout.split())

    def test_inputs_are_flags(self):
        run.well("account", "mesh", "--d-model", 100, "--d-ff", 200, "--blocks", 10, "--gpu-gb", 0.003,
                 "--limit-gb", 0.001, "--flops", 1000, "--bandwidth", 10, "--x", 4, "--y", 1, "--mx", 1,
                 "--tokens", 0, "--out", self.path)
        mesh = self.values("mesh")
        self.assertEqual(mesh["parameters"], 10 * 2 * 100 * 200)
        self.assertEqual(mesh["accelerators of 0.003 GB"], 3)  # 6.4 MB in 3 MB each
        self.assertEqual(mesh["N_FSDP for less than 0.001 GB"], 7)
        self.assertEqual(mesh["least batch, axes at once"], 4 * 1000 / 10)
        run.well("account", "step", "--size", "small", "--layers", 2, "--batch", 1, "--context", 8,
                 "--mode", "forward", "--out", self.path)
        block = 4 * 768 ** 2 + 3 * 768 * 3072 + 2 * 768
        self.assertEqual(self.values("step")["parameters"], 2 * 10000 * 768 + 2 * block + 768)

    def test_plan(self):
        """Of a run on GPUs that are not here; the table names what fits, and what does not."""
        arguments = ("plan", SOURCE / "configs/8B.json", "--card", "H200", "--ranks", 2,
                     "--set", "parallel.shard_optimizer=full", "--set", "train.moments=bf16")
        result = run.well("account", *arguments, "--out", self.path)
        self.assertRegex(result.stdout, r"Recommended: train\.recompute inner, train\.recompute_blocks \d+ "
                                        r"\(the config has none, which does not fit\)\.")
        rows = {row["train.recompute"]: row for row in rows_of(self.path / "account_plan.csv")}
        some = next(name for name in rows if name.startswith("inner, first"))
        self.assertEqual({name: row["fits"] for name, row in rows.items()},
                         {"none": "no", "norms": "no", "inner": "yes", "block": "yes", some: "yes"})
        steps = [float(rows[name]["step (ms)"]) for name in (some, "inner", "block")]
        self.assertEqual(steps, sorted(steps))
        parts = self.table("account_plan_memory")["rows"]
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
        large = run.well("account", "step", "--d-model", 1 << 20, "--heads", 1 << 10, "--d-ff", 1 << 22,
                         "--layers", 10000)
        self.assertIn(f"{10000 * 16 * 2 ** 40 + 10000 * 2 ** 21 + 2 ** 20 + 2 * 10000 * 2 ** 20:,}", large.stdout)


class PrecisionTest(FolderTest):
    def test_files(self):
        result = run.well("precision", "--size", "32/64/1/2", "--context", 16, "--batch", 2, "--warmup", 1,
                          "--steps", 2, "--norm-width", 64, "--device", "cpu", "--out", self.path)
        self.assertIn("9.9531", result.stdout)
        for part in ("accumulation", "dtypes", "norms", "sizes", "sizes_runs"):
            self.assertGreater(len(self.table(f"precision_{part}")["rows"]), 0, part)

    def test_all_sizes(self):
        """Too long a context: what all means, and nothing is measured."""
        run.well("precision", "--only", "sizes", "--size", "32/64/1/2,all", "--context", 16777216, "--batch",
                 1 << 20, "--device", "cpu", "--out", self.path)
        table = self.table("precision_sizes")
        self.assertEqual(column(table, "model"), ["32/64/1/2", "small", "medium", "large", "xl", "2.7B"])
        self.assertEqual(set(column(table, "fp32 forward")), {"OOM"})
        self.assertTrue(any("GiB are needed" in note for note in table["notes"]), table["notes"])

    def test_only(self):
        printed = run.well("precision", "--only", "accumulation").stdout
        self.assertIn("10.0021", printed)
        self.assertNotIn("LayerNorm", printed)


if __name__ == "__main__":
    unittest.main()
