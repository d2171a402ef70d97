"""flashstep profile as a command: files that their real readers open, a trace read back, and exit codes."""
import json
import unittest
import xml.etree.ElementTree
from decimal import Decimal

import trace_rules
from program import Command, FolderTest, column

run = Command("profile")
SMALL = ("--device", "cpu", "--size", "32/64/2/2", "--vocab", 64, "--context", 16, "--batch", 2, "--warmup", 1,
         "--steps", 2, "--recorded", 1)


class ProfileTest(FolderTest):
    def trace(self, case):
        return json.loads((self.path / f"trace_{case}.json").read_text(), parse_float=Decimal)

    def test_tables_pictures_and_traces(self):
        run.well(*SMALL, "--out", self.path)
        self.assertEqual(set(column(self.table("profile"), "attention")), {"auto", "naive"})
        shares = self.table("profile_shares")
        for attention in ("auto", "naive"):
            of_case = [share for share, name in zip(column(shares, "step share"), column(shares, "attention"))
                       if name == attention]
            self.assertAlmostEqual(sum(of_case), 100, delta=2)
            case = f"32_64_2_2_context_16_fp32_{attention}"
            xml.etree.ElementTree.parse(self.path / f"profile_flame_{case}.svg")
            trace = self.trace(case)
            self.assertEqual(trace_rules.broken_rules(trace), [])
            ranges = {e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"}
            self.assertLessEqual({"step", "forward", "backward", "optimizer", "layers.0", "layers.1", "norm"}, ranges)
            self.assertEqual(attention == "naive", "softmax" in ranges)
        self.assertEqual(set(column(self.table("profile_attention"), "attention")), {"naive"})

    def test_reads_its_own_trace(self):
        run.well(*SMALL, "--attention", "naive", "--out", self.path)
        measured = self.table("profile_ranges")
        result = run.well("--trace", self.path / "trace_32_64_2_2_context_16_fp32_naive.json", "--out", self.path)
        self.assertIn("layers.* > self-attention > attention > softmax", result.stdout)
        self.assertEqual(column(self.table("profile_ranges"), "range"), column(measured, "range"))

    def test_broken_rules_of_traces_are_seen(self):
        run.well(*SMALL, "--attention", "naive", "--out", self.path)

        def longer(event):
            event["dur"] += 10_000_000

        def late(event):
            event["ts"] += 10_000_000

        for phase, name, harm, rule in (
                ("X", "layers.0", longer, "layers.0 ends after"),
                ("X", "layers.0", lambda event: event.pop("tid"), "no name, process, thread or time"),
                ("X", "layers.0", lambda event: event.update(dur=-1), "no duration"),
                ("M", "process_name", lambda event: event.pop("args"), "metadata without"),
                ("s", "fwdbwd", late, "1 starts, 1 ends"),
                ("s", "fwdbwd", lambda event: event.update(ph="t"), "0 starts, 1 ends"),
                ("f", "fwdbwd", late, "touches nothing")):
            trace = self.trace("32_64_2_2_context_16_fp32_naive")
            harm(next(event for event in trace["traceEvents"] if (event["ph"], event["name"]) == (phase, name)))
            self.assertIn(rule, "\n".join(trace_rules.broken_rules(trace)))

    def test_only_ranges_for_other_profilers(self):
        run.well(*SMALL, "--no-record", "--out", self.path)
        self.assertFalse(list(self.path.glob("trace_*")))


if __name__ == "__main__":
    unittest.main()
