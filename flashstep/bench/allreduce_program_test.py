"""flashstep bench allreduce as a command on the CPU: its ranks, its files, its exit codes."""
import os
import signal
import subprocess
import time
import unittest

from program import Command, FolderTest, children_of, rows_of

run = Command("bench", "allreduce")


class BenchAllreduceTest(FolderTest):
    def test_files(self):
        folder = self.path / "new"
        result = run.well("--device", "cpu", "--megabytes", "0.01,1", "--ranks", "2,3", "--seconds", 0.05, "--out", folder)
        self.assertIn("Verdict: 4 of 4 cases measured, 0 failed, 0 wrong elements.", result.stdout)
        runs = rows_of(folder / "allreduce.csv")
        self.assertEqual([(r["ranks"], r["size (MB)"], r["implementation"]) for r in runs],
                         [(ranks, size, who) for ranks in "23" for size in ("0.01", "1") for who in ("flashstep", "bare")])
        self.assertTrue(all(float(r["median (ms)"]) > 0 and r["wrong"] == "0" for r in runs), runs)
        self.assertEqual(len(self.table("new/allreduce")["rows"]), 4)
        document = (folder / "allreduce.md").read_text()
        for picture in ("bus", "time"):
            self.assertIn(f"(allreduce_{picture}.svg)", document)
            self.assertTrue((folder / f"allreduce_{picture}.svg").exists())

    def test_interruption(self):
        """Ctrl-C stops the ranks, and what was measured is shown."""
        process = subprocess.Popen(run.line("--device", "cpu", "--megabytes", "0.01", "--ranks", "2,3", "--seconds", 60),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        ranks = []
        while len(ranks) < 2 and time.monotonic() < deadline:
            ranks = [rank for launcher in children_of(process.pid) for rank in children_of(launcher)]
            time.sleep(0.02)
        self.assertEqual(len(ranks), 2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("Interrupted: ", output)
        self.assertIn("interrupted; what was measured is shown", errors)
        for rank in ranks:
            with self.assertRaises(ProcessLookupError, msg=f"rank {rank} still runs"):
                os.kill(rank, 0)


if __name__ == "__main__":
    unittest.main()
