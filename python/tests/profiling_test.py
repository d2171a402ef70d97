"""flashstep.profiling: ranges in traces, a step's time by class of work, tensors' memory to the byte."""

import json
import os
import tempfile
import threading
import unittest
import xml.etree.ElementTree

import needs_torch  # noqa: F401
import torch
from torch import nn

import flashstep
from flashstep import profiling

ROWS, WIDTH = 64, 96
MIB = 2**20


def annotations(work):
    """The ranges that torch's profiler sees, in the order in which they begin."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"]
    return sorted((e for e in events if e["name"] != "end of range"), key=lambda event: event["ts"])


def inside(inner, outer):
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


class Ranges(unittest.TestCase):
    def test_nested_and_as_a_decorator(self):
        @profiling.range("called")
        def called(depth):
            return called(depth - 1) if depth else torch.ones(3).sum()

        def work():
            with profiling.range("outer"), profiling.range("inner"):
                called(1)
            with self.assertRaises(KeyError), profiling.range("broken off"):
                raise KeyError

        outer, inner, first, second, broken = annotations(work)
        self.assertEqual(
            [e["name"] for e in (outer, inner, first, second, broken)],
            ["outer", "inner", "called", "called", "broken off"],
        )
        self.assertTrue(inside(inner, outer) and inside(first, inner) and inside(second, first))
        self.assertFalse(inside(broken, outer))

    def test_threads_have_their_own(self):
        meet = threading.Barrier(2)

        def work(name):
            with profiling.range(name):
                meet.wait()
                meet.wait()

        threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self.assertRaisesRegex(ValueError, "expected a range to end"):
            profiling._ranges.end()

    def test_compiled_functions_have_none(self):
        @torch.compile(backend="eager", fullgraph=True)
        def compiled(x):
            with profiling.range("forward"):
                return x + 1

        self.assertTrue(torch.equal(compiled(torch.zeros(2)), torch.ones(2)))


class Profiles(unittest.TestCase):
    def setUp(self):
        self.net = nn.Module()
        self.net.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.calls = 0

    def step(self):
        self.calls += 1
        x = torch.ones(ROWS, WIDTH, requires_grad=True)
        with profiling.range("forward"):
            for layer in self.net.layers:
                x = layer(x)
            loss = x.sum()
        with profiling.range("backward"):
            loss.backward()

    def test_a_step_by_class_pass_and_block(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile = profiling.profile(self.step, module=self.net, steps=2, warmup=3, trace=path)
            self.assertEqual(profiling.tables(path), str(profile))
        self.assertEqual(self.calls, 3 + 1 + 2)
        classes = profile.tables["classes"]
        products = dict(zip(classes["class"], classes["products (GFLOP)"]))["matmul"]
        self.assertAlmostEqual(products, 3 * 3 * 2 * ROWS * WIDTH * WIDTH / 1e9, places=9)  # forward, two backward
        times = dict(zip(profile.tables["profile"]["pass"], profile.tables["profile"]["kernels (ms)"]))
        self.assertEqual(set(times), {"forward", "backward", "in all"})
        self.assertTrue(all(time > 0 for time in times.values()))
        self.assertEqual(profile.tables["blocks"]["block"], [0, 1, 2])
        self.assertTrue(all(time > 0 for time in profile.tables["blocks"]["backward (ms)"]))
        self.assertEqual(set(profile.pictures), {"flame", "shares"})
        for picture in profile.pictures.values():
            xml.etree.ElementTree.fromstring(picture.svg)
        for layer in self.net.layers:
            self.assertFalse(layer._forward_hooks or layer._forward_pre_hooks)

    def test_a_compiled_module(self):
        net = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager", fullgraph=True)

        def step():
            with profiling.range("forward"):
                net(torch.ones(2, 4))

        times = profiling.profile(step, module=net).tables["profile"]
        self.assertEqual(times["pass"], ["forward", "in all"])

    def test_every_operator_of_ours_has_a_class(self):
        net = flashstep.nn.TransformerLM(
            vocab_size=50, context_length=16, d_model=32, num_layers=2, num_heads=2, d_ff=48
        )
        optimizer = flashstep.AdamW(net.parameters())
        ids = torch.arange(32).view(2, 16)

        def step():
            with profiling.range("forward"):
                loss = net.loss(ids, ids) + flashstep.cross_entropy(net(ids), ids)
            with profiling.range("backward"):
                loss.backward()
            with profiling.range("optimizer"):
                flashstep.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()

        kernels = profiling.profile(step, module=net, top=1000).tables["kernels"]
        ours = ("rms_norm", "rope_rows", "swiglu", "attention_forward", "attention_backward", "adamw_", "clip_to_norm_")
        self.assertLessEqual(set(ours), set(kernels["kernel"]))
        unclassified = [
            name for name, of in zip(kernels["kernel"], kernels["class"], strict=True) if of == "unclassified"
        ]
        self.assertEqual(unclassified, [])

    def test_the_librarys_own_ranges(self):
        q = torch.randn(1, 2, 32, 16)

        def step():
            flashstep.attention(q, q, q, implementation="naive")

        ranges = profiling.profile(step).tables["ranges"]
        self.assertTrue({"scores", "softmax", "values"} <= {name.strip() for name in ranges["range"]})
        self.assertEqual(annotations(step), [])  # nobody listens any longer

    def test_a_step_that_fails(self):
        def step():
            raise KeyError("of the step")

        with self.assertRaises(KeyError):
            profiling.profile(step, module=self.net)
        self.assertFalse(self.net.layers[0]._forward_hooks)
        self.assertEqual(annotations(lambda: flashstep.cross_entropy(torch.ones(2, 3), torch.ones(2).long())), [])


class Memory(unittest.TestCase):
    def test_to_the_byte(self):
        with profiling.memory() as recorded:
            weight = torch.ones(MIB // 4, requires_grad=True)
            recorded.label("parameters", [weight])
            with profiling.range("forward"):
                kept = weight * 2
                torch.ones(MIB)  # 4 MiB, for a moment
                loss = (kept * kept).sum()  # 1 MiB, for a moment; keeps `kept`
            with profiling.range("backward"):
                loss.backward()
            recorded.label("gradients", [weight.grad, None])
        report = recorded.report(largest=2)
        peak = {head: cells[0] for head, cells in report.tables["memory"].items()}
        self.assertEqual((peak["parameters (MiB)"], peak["gradients (MiB)"]), (1, 0))
        self.assertAlmostEqual(peak["activations (MiB)"], 1, places=3)
        self.assertAlmostEqual(peak["peak (MiB)"], 6, places=3)
        largest = report.tables["largest"]
        self.assertEqual((largest["bytes (MiB)"][0], largest["shape"][0]), (4, f"float32 ({MIB})"))
        self.assertEqual(largest["range"][0], "forward")
        shown = "".join(xml.etree.ElementTree.fromstring(report.pictures["timeline"].svg).itertext())
        self.assertIn("MiB of tensors", shown)

    def test_mistakes_are_sentences(self):
        with profiling.memory() as recorded:
            torch.ones(10)
            with self.assertRaisesRegex(ValueError, "expected a recording that has ended"):
                recorded.report()
            with self.assertRaisesRegex(ValueError, 'expected one of parameters, .*, got "weights"'):
                recorded.label("weights", [])
            with self.assertRaisesRegex(ValueError, "one observer of memory at a time"), profiling.memory():
                pass
            with self.assertRaisesRegex(ValueError, "one recording at a time"):
                profiling.profile(lambda: None)
        recorded.report()
        with profiling.memory() as recorded:
            pass
        with self.assertRaisesRegex(ValueError, "saw a tensor's memory"):
            recorded.report()


if __name__ == "__main__":
    unittest.main()
