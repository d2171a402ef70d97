"""flashstep memory as a command: its snapshots held against PyTorch's own reader, its files and exit codes."""
import json
import pickle
import pickletools
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from program import Command, rows_of

try:
    from torch.cuda import _memory_viz
except ImportError:
    print("SKIPPED: needs Python's torch")
    sys.exit(77)

run = Command("memory")
SMALL = ("--device", "cpu", "--size", "32/64/3/2", "--vocab", 64, "--context", 16, "--batch", 2)
# What MemoryViz.js, behind pytorch.org/memory_viz, can read.
VIEWER_OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "DICT",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK",
    "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE",
    "TUPLE1", "TUPLE2", "TUPLE3"}


def active_at_end(events):
    """Replays a device's trace; returns what is alive at its end and the most that was."""
    alive, now, peak = {}, 0, 0
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in alive, event
            alive[event["addr"]] = event["size"]
            now += event["size"]
        elif event["action"] == "free_completed":
            now -= alive.pop(event["addr"])
        peak = max(peak, now)
    return alive, peak


class MemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = Path(cls.folder.name)
        run.well(*SMALL, "--mode", "forward,step", "--precision", "fp32,bf16", "--out", cls.path)

    def test_tables(self):
        rows = rows_of(self.path / "memory.csv")
        self.assertEqual([(row["mode"], row["precision"]) for row in rows],
                         [("forward", "fp32"), ("step", "fp32"), ("forward", "bf16"), ("step", "bf16")])
        for row in rows:
            kinds = ("parameters", "gradients", "optimizer state", "activations", "temporaries", "communication",
                     "other")
            self.assertAlmostEqual(sum(float(row[f"{kind} (MiB)"] or 0) for kind in kinds), float(row["peak (MiB)"]),
                                   places=9)
        # 2 x 64 x 32 embedding and head, 3 blocks of 4 x 32 x 32 + 3 x 32 x 64 + 2 x 32, and the last norm's 32
        parameters = 2 * 64 * 32 + 3 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32) + 32
        self.assertAlmostEqual(float(rows[1]["parameters (MiB)"]), 4 * parameters / 2**20, places=9)
        for table in ("largest", "block", "operators", "residual"):
            stored = json.loads((self.path / f"memory_{table}.json").read_text())
            self.assertTrue(stored["rows"], table)
        self.assertEqual(len(rows_of(self.path / "memory_block.csv")), 2, "one a precision: forward keeps nothing")
        residual = rows_of(self.path / "memory_residual.csv")[0]
        self.assertEqual(float(residual["formula (MiB)"]), 2 * 16 * 32 * 4 / 2**20)
        self.assertEqual(residual["formula (MiB)"], residual["measured (MiB)"])

    def snapshots(self):
        files = sorted(self.path.glob("*/memory_snapshot.pickle"))
        self.assertEqual(len(files), 4, files)
        for file in files:
            with open(file, "rb") as opened:
                yield file, pickle.load(opened)

    def test_snapshots_in_pytorchs_reader(self):
        for file, snapshot in self.snapshots():
            summary = _memory_viz.segsum(snapshot)  # it checks that blocks add up to their segments
            self.assertIn("total_allocated", summary)
            self.assertIn("TOTAL MEM", _memory_viz.trace(snapshot))
            self.assertIn("MemoryViz", _memory_viz.trace_plot(snapshot))
            self.assertIn("MemoryViz", _memory_viz.segment_plot(snapshot))
            events = snapshot["device_traces"][0]
            alive, peak = active_at_end(events)
            blocks = {}
            for segment in snapshot["segments"]:
                address = segment["address"]
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        blocks[address] = block["size"]
                    address += block["size"]
            self.assertEqual(alive, blocks, file)
            self.assertGreater(peak, 0)
            categories = {event.get("category") for event in events}
            self.assertIn("parameters", categories)
            self.assertIn("unknown", categories, "MemoryViz.js fails where it is missing")
            self.assertEqual("optimizer state" in categories, "_step_" in str(file))
            self.assertTrue(any(frame["name"].startswith("flashstep::")
                                for event in events for frame in event.get("frames", [])))

    def test_snapshots_in_the_viewers_opcodes(self):
        for file in self.path.glob("*/memory_snapshot.pickle"):
            opcodes = {opcode.name for opcode, _, _ in pickletools.genops(file.read_bytes())}
            self.assertLessEqual(opcodes, VIEWER_OPCODES)

    def test_pictures(self):
        pictures = sorted(self.path.glob("memory_timeline_*.svg"))
        self.assertEqual(len(pictures), 4)
        for picture in pictures:
            texts = {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
            self.assertIn("parameters", texts)
            self.assertEqual("optimizer state" in texts, "_step_" in picture.name)
        self.assertTrue(list(self.path.glob("memory_peaks_*.svg")))

    def test_reads_snapshots(self):
        file = next(iter(self.path.glob("*step_fp32*/memory_snapshot.pickle")))
        with tempfile.TemporaryDirectory() as out:
            result = run.well("--snapshot", file, "--out", out)
            self.assertTrue((Path(out) / "memory_timeline_snapshot.svg").exists())
            with open(file, "rb") as opened:
                _, peak = active_at_end(pickle.load(opened)["device_traces"][0])
            self.assertAlmostEqual(float(rows_of(Path(out) / "memory.csv")[0]["peak (MiB)"]), peak / 2**20, places=9)
            # The same data by Python's own pickler: another protocol.
            again = Path(out) / "again.pickle"
            with open(file, "rb") as opened:
                again.write_bytes(pickle.dumps(pickle.load(opened), protocol=5))
            second = run("--snapshot", again)
            self.assertEqual(second.stdout.splitlines()[1:], result.stdout.splitlines()[1:])


if __name__ == "__main__":
    unittest.main()
