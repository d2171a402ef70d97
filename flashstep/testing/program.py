"""What tests of the program's commands share."""
import csv
import json
import os
import struct
import subprocess
import tempfile
import unittest
from array import array
from pathlib import Path

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
SOURCE = Path(os.environ["FLASHSTEP_SOURCE"])


class Command:
    """The program by a command's words: `run = Command("bench", "norm")`; run("--rows", 3).stdout."""

    def __init__(self, *words):
        self.words = words

    def line(self, *arguments):
        return [PROGRAM, *self.words, *map(str, arguments)]

    def __call__(self, *arguments, **options):
        return subprocess.run(self.line(*arguments), capture_output=True, text=True, timeout=280, **options)

    def well(self, *arguments, **options):
        """The same, of a call that ends well."""
        result = self(*arguments, **options)
        assert result.returncode == 0, result.stderr
        return result


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def column(table, name):
    index = [c["name"] for c in table["columns"]].index(name)
    return [row[index] for row in table["rows"]]


def write_tokens(path, ids):
    """A vector of uint16 as NumPy's .npy, version 1."""
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(ids)},), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     array("H", ids).tobytes())


def children_of(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def table(self, name):
        return json.loads((self.path / f"{name}.json").read_text())
