"""flashstep bench allreduce as a command on the CPU: its ranks, its files, its exit codes."""
import csv
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from program import Command, children_of

run = Command("bench", "allreduce")


class BenchAllreduceTest(unittest.TestCase):
    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            stem = Path(folder) / "new" / "allreduce"
            result = run("--device", "cpu", "--megabytes", "0.01,1", "--ranks", "2,3", "--seconds", 0.05, "--out", stem.parent)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("Verdict: 4 of 4 cases measured, 0 failed, 0 wrong elements.", result.stdout)
            with open(f"{stem}.csv", newline="") as file:
                runs = list(csv.DictReader(file))
            self.assertEqual([(r["ranks"], r["size (MB)"], r["implementation"]) for r in runs],
                             [(ranks, size, who) for ranks in "23" for size in ("0.01", "1") for who in ("flashstep", "bare")])
            self.assertTrue(all(float(r["median (ms)"]) > 0 and r["wrong"] == "0" for r in runs), runs)
            table = json.loads(Path(f"{stem}.json").read_text())
            self.assertEqual(len(table["rows"]), 4)
            document = Path(f"{stem}.md").read_text()
            for picture in ("bus", "time"):
                self.assertIn(f"(allreduce_{picture}.svg)", document)
                self.assertTrue(Path(f"{stem}_{picture}.svg").exists())

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
                os.kill(int(rank), 0)


if __name__ == "__main__":
    unittest.main()
