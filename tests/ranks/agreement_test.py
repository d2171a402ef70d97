"""`flashstep train` on ranks that were told, or read, different things: refused, with what differs and where."""
import sys
import tempfile
from pathlib import Path

from job import PROGRAM, Job, expect

from training_run import write_config

STEPS = 6


def two_configs(directory, **fields):
    """The same configuration twice, in node0/ and node1/ with data of their own; `fields` are the second's."""
    for node, more in (("node0", {}), ("node1", fields)):
        (directory / node).mkdir(parents=True)
        write_config(directory / node, train={"steps": STEPS}, **more)
    return directory


def train(directory):
    """Exit code and output of two ranks; rank R has the configuration of nodeR."""
    command = f"exec '{PROGRAM}' train '{directory}'/node$RANK/config.json --run '{directory}/run'"
    with Job([PROGRAM, "launch", "-n", 2, "--", "/bin/sh", "-c", command]) as job:
        return job.end(), job.output()


def refused(directory, sentence):
    code, output = train(directory)
    expect(code == 2, "exit code 2", output)
    expect(f"[train] expected the same configuration and data on every rank, got {sentence}" in output, sentence,
           output)


def main():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        code, output = train(two_configs(root / "same"))  # other paths only
        expect(code == 0, "exit code 0", output)

        refused(two_configs(root / "rate", schedule={"learning_rate": 0.5}),
                "schedule.learning_rate = 0.001 on rank 0 and schedule.learning_rate = 0.5 on rank 1")
        refused(two_configs(root / "wrapper", parallel={"wrapper": "naive"}),
                "parallel.wrapper = \"bucketed\" on rank 0 and parallel.wrapper = \"naive\" on rank 1")

        # The second's tokens are of another text; the tokenizer is the first's.
        data = root / "same" / "node0" / "data"
        other = bytearray((data / "train.npy").read_bytes())
        other[-2:] = b"\x07\x00" if other[-2:] != b"\x07\x00" else b"\x08\x00"  # the last id, uint16
        (root / "other.npy").write_bytes(other)
        for node, tokens in (("node0", data / "train.npy"), ("node1", root / "other.npy")):
            (root / "tokens" / node).mkdir(parents=True)
            write_config(root / "tokens" / node, train={"steps": STEPS}, tokenizer={"path": str(data / "tokenizer")},
                         tokens={"train": str(tokens), "validation": str(data / "validation.npy")})
        refused(root / "tokens", "training tokens = ")
    print("ranks that were told or read different things say so")


if __name__ == "__main__":
    sys.exit(main())
