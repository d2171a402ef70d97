"""PyPI's tensorboard reads our event files; after a resume no step shows twice."""

import glob
import os
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

TOOL = os.environ["FLASHSTEP_FILE_TOOL"]


def write(directory, first, last):
    subprocess.run([TOOL, "write-events", directory, str(first), str(last)], check=True)


def scalars(directory, tag):
    """What the old reader and the one that TensorBoard's server uses show: [(step, value)]."""
    old = event_accumulator.EventAccumulator(directory, size_guidance={"scalars": 0})
    old.Reload()
    new = plugin_event_accumulator.EventAccumulator(directory, size_guidance={"tensors": 0})
    new.Reload()
    shown = [(event.step, event.value) for event in old.Scalars(tag)]
    shown_new = [(event.step, event.tensor_proto.float_val[0]) for event in new.Tensors(tag)]
    assert shown == shown_new, (shown, shown_new)
    return shown


def texts(directory):
    reader = plugin_event_accumulator.EventAccumulator(directory, size_guidance={"tensors": 0})
    reader.Reload()
    assert reader.SummaryMetadata("samples").plugin_data.plugin_name == "text"
    return [(e.step, e.tensor_proto.string_val[0].decode()) for e in reader.Tensors("samples")]


def test_values(directory):
    write(directory, 1, 20)
    shown = scalars(directory, "loss/train")
    assert [step for step, _ in shown] == list(range(1, 21)), shown
    assert all(abs(value - 1 / step) < 1e-7 for step, value in shown), shown
    assert texts(directory) == [(n, f"step **{n}** é") for n in (5, 10, 15, 20)]


def test_resume_shows_no_step_twice(directory):
    write(directory, 13, 17)  # resumed from a checkpoint of step 12 after 20 steps
    assert [step for step, _ in scalars(directory, "lr")] == list(range(1, 18))
    assert [value for _, value in scalars(directory, "lr")] == [1] * 12 + [13] * 5
    assert [step for step, _ in texts(directory)] == [5, 10, 15]
    write(directory, 16, 16)  # and again, within the same second
    assert [value for _, value in scalars(directory, "lr")] == [1] * 12 + [13] * 3 + [16]


def test_torn_record(directory):
    """A process killed while writing: what is whole is shown, and so is the next file."""
    last = sorted(glob.glob(os.path.join(directory, "events*")))[-1]
    os.truncate(last, os.path.getsize(last) - 3)
    write(directory, 16, 18)
    assert [step for step, _ in scalars(directory, "lr")] == list(range(1, 19))


def test_new_run_in_used_directory(directory):
    write(directory, 1, 2)
    assert [step for step, _ in scalars(directory, "lr")] == [1, 2]


with tempfile.TemporaryDirectory() as directory:
    test_values(directory)
    test_resume_shows_no_step_twice(directory)
    test_torn_record(directory)
    test_new_run_in_used_directory(directory)
print("tensorboard agrees")
