"""flashstep bench ddp, sharding, matrix, leaderboard and allreduce as commands: they start their own ranks."""
import json
import os
import signal
import subprocess
import unittest

from program import Command, FolderTest, children_of, column, rows_of, write_tokens

run = Command("bench")
SMALL = ("--device", "cpu", "--model", "32/64/2/2", "--vocab", 64, "--context", 16, "--batch", 2, "--ranks", 2,
         "--precision", "fp32")
FEW = ("--turns", 2, "--warmup", 2, "--steps", 2)


class BenchParallelTest(FolderTest):
    def test_ddp(self):
        result = run.well("ddp", *SMALL, *FEW, "--bucket-mb", "0.01,1000", "--out", self.path)
        self.assertIn("Verdict: the weights of all 7 compared runs are a single process's.", result.stdout)
        rows = rows_of(self.path / "ddp.csv")
        self.assertEqual([row["wrapper"] for row in rows],
                         ["none", "naive", "flat", "overlapped", "bucketed 0.01", "bucketed 1000", "torch 0.01",
                          "torch 1000"])
        for row in rows:
            self.assertGreater(float(row["step (ms)"]), 0)
            self.assertGreater(float(row["first (ms)"]), 0)
            self.assertGreaterEqual(float(row["slowest (ms)"]), float(row["step (ms)"]))
            self.assertEqual(row["lead (ms)"], "", "no device beside the host")
            self.assertEqual(row["by"], "" if row["wrapper"] == "none" else "Gloo")
            if row["wrapper"] != "none":
                self.assertEqual(float(row["weights"]), 0, row)
                self.assertGreater(float(row["communication (ms)"]), 0, row)
        self.assertEqual(len(self.table("ddp")["rows"]), 8)
        self.assertTrue((self.path / "ddp_32-64-2-2_2x2x16_fp32_lanes.svg").exists())

    def test_memory_does_not_depend_on_the_order(self):
        model = ("--device", "cpu", "--model", "256/1024/4/4", "--context", 64, "--batch", 2, "--ranks", 2,
                 "--precision", "fp32")
        peaks = []
        for order in ("none,naive,bucketed,torch", "torch,bucketed,naive,none"):
            result = run.well("ddp", *model, "--turns", 1, "--warmup", 1, "--steps", 1, "--no-trace", "--check-steps", 0,
                              "--bucket-mb", 25, "--wrapper", order, "--out", self.path)
            table = self.table("ddp")
            peaks.append(dict(zip(column(table, "wrapper"), column(table, "peak memory")))["none"])
            self.assertIn("a few percent depend on the order", " ".join(result.stdout.split()))
        self.assertLess(max(peaks) / min(peaks), 1.06, peaks)

    def test_sharding(self):
        result = run.well("sharding", *SMALL, *FEW, "--bucket-mb", 0.01, "--out", self.path)
        rows = rows_of(self.path / "sharding.csv")
        self.assertEqual([row["optimizer"] for row in rows], ["none", "whole", "flat"])
        self.assertEqual([row["gradients by"] for row in rows], ["Gloo"] * 3)
        self.assertEqual([row["updates by"] for row in rows], ["", "Gloo", "Gloo"])
        state = [float(row["state (GiB)"]) for row in rows]
        self.assertLess(state[1], 0.6 * state[0])
        self.assertLess(state[2], 0.6 * state[0])
        self.assertIn("of the state a rank", result.stdout)
        for row in rows:
            self.assertGreater(float(row["computing (ms)"]), 0, row)
            self.assertGreater(float(row["host (ms)"]), 0, row)
            self.assertLessEqual(float(row["exposed (ms)"]), float(row["communication (ms)"]) + 1e-9, row)
        self.assertEqual(rows[0]["launches"], "0", "gradients travel in backward, not in the update")
        for row in rows[1:]:
            self.assertGreater(int(row["launches"]), 0, row)
        self.assertTrue((self.path / "sharding_32-64-2-2_2x2x16_fp32_update.svg").exists())

    def test_leaderboard(self):
        shape = ("--device", "cpu", "--model", "32/64/2/2", "--vocab", 65, "--context", 17, "--batch", 2)
        result = run.well("leaderboard", *shape, "--ranks", 3, "--warmup", 2, "--steps", 2, "--python", "python3",
                     "--peer-script", self.path / "none.py", "--out", self.path)
        rows = rows_of(self.path / "leaderboard.csv")
        self.assertEqual([row["implementation"] for row in rows],
                         ["reference", "bf16 weights", "fp32 weights", "FSDP2", "FSDP2, compiled"])
        for row in rows[1:3]:
            self.assertGreater(float(row["step (ms)"]), 0, row)
            self.assertLess(float(row["gradient error"]), 0.02, row)
            self.assertGreater(float(row["gradient error"]), 0, row)
            self.assertLessEqual(float(row["weight error"]), 1, row)
            self.assertLess(float(row["loss error"]), 0.01, row)
        work = rows_of(self.path / "leaderboard_work.csv")
        self.assertEqual([row["implementation"] for row in work], ["bf16 weights", "fp32 weights"])
        for row in work:
            self.assertGreater(float(row["matmul (ms)"]), 0, row)
            self.assertGreater(float(row["traced step (ms)"]), float(row["matmul (ms)"]), row)
        self.assertTrue((self.path / "leaderboard_memory_1.svg").exists())
        picture = json.loads((self.path / "leaderboard_memory_1.picture.json").read_text())
        most = {line["name"]: max(line["y"]) for line in picture["series"]}
        self.assertEqual(list(most), ["reference", "bf16 weights", "fp32 weights"])
        self.assertGreater(most["fp32 weights"], most["bf16 weights"])
        self.assertIn("FSDP2: failed: ", result.stdout, "what a baseline cannot do is a cell")
        refused = run("leaderboard", *shape, "--ranks", 1)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("expected 2 ranks or more", refused.stderr)

    def test_buckets_that_are_chosen(self):
        result = run.well("sharding", *SMALL, *FEW, "--shard", "none,flat", "--no-trace", "--out", self.path)
        self.assertRegex(result.stdout, "flat: gradients bucketed, .* MB \\(chosen\\), by Gloo")
        self.assertEqual([row["computing (ms)"] for row in rows_of(self.path / "sharding.csv")], ["", ""])
        result = run.well("ddp", *SMALL, *FEW, "--wrapper", "bucketed", "--bucket-mb", "0,1", "--check-steps", 0,
                     "--no-trace", "--out", self.path)
        self.assertEqual([row["wrapper"] for row in rows_of(self.path / "ddp.csv")],
                         ["bucketed 25 MB (chosen)", "bucketed 1"])

    def test_matrix(self):
        train, validation = self.path / "train.npy", self.path / "val.npy"
        write_tokens(train, [i * i % 64 for i in range(16 * 40 + 1)])
        write_tokens(validation, [i * i % 64 for i in range(100, 200)])
        result = run.well("matrix", *SMALL, "--train", train, "--val", validation, "--epochs", 2, "--attention",
                     "cpu,naive", "--wrapper", "none,naive,bucketed", "--bucket-mb", 0.01, "--out", self.path)
        rows = rows_of(self.path / "matrix.csv")
        self.assertEqual([(row["attention"], row["wrapper"], row["ranks"]) for row in rows],
                         [(attention, wrapper, ranks) for attention in ("cpu", "naive")
                          for wrapper, ranks in (("none", "1"), ("naive", "2"), ("bucketed 0.01", "2"))])
        for row in rows:
            self.assertGreater(float(row["tokens (1/s)"]), 0)
            self.assertLess(float(row["validation loss (nats)"]), 4.2, "ln 64 is 4.16")
        losses = {row["wrapper"]: float(row["validation loss (nats)"]) for row in rows if row["attention"] == "cpu"}
        self.assertAlmostEqual(losses["naive"], losses["bucketed 0.01"], places=6)

    def test_allreduce(self):
        folder = self.path / "new"
        result = run.well("allreduce", "--device", "cpu", "--megabytes", "0.01,1", "--ranks", "2,3", "--seconds", 0.05,
                          "--out", folder)
        self.assertIn("Verdict: 4 of 4 cases measured, 0 failed, 0 wrong elements.", result.stdout)
        runs = rows_of(folder / "allreduce.csv")
        self.assertEqual([(r["ranks"], r["size (MB)"], r["implementation"]) for r in runs],
                         [(ranks, size, who) for ranks in "23" for size in ("0.01", "1") for who in ("flashstep", "bare")])
        self.assertTrue(all(float(r["median (ms)"]) > 0 and r["wrong"] == "0" for r in runs), runs)
        self.assertEqual(len(self.table("new/allreduce")["rows"]), 4)

    def test_a_rank_that_crashes_is_a_failure(self):
        process = subprocess.Popen(run.line("ddp", *SMALL, "--turns", 1, "--warmup", 1, "--steps", 1000, "--wrapper",
                                           "none,naive", "--check-steps", 0, "--no-trace", "--out", self.path),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "turn 1 of 1, naive" not in process.stderr.readline():
            pass
        launcher, = children_of(process.pid)
        os.kill(children_of(launcher)[1], signal.SIGSEGV)
        output, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 1, errors)
        self.assertRegex(errors, r"flashstep: \[bench ddp\] .*, naive failed: rank \d of 2 .*SIGSEGV")
        none, naive = rows_of(self.path / "ddp.csv")
        self.assertGreater(float(none["step (ms)"]), 0)
        self.assertNotIn("SIGSEGV", none.values())
        self.assertEqual([value for value in naive.values() if value == "failed"], ["failed"], naive)


if __name__ == "__main__":
    unittest.main()
