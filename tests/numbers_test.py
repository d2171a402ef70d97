"""Every option of every command that takes numbers refuses those that it cannot hold, with a sentence that names it."""
import os
import re
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
HUGE = "99999999999999999999999"
# Beyond 64 bits, below what is unsigned, beyond a double, none at all.
REFUSED = {"INT": (HUGE,), "UINT": (HUGE, "-1"), "FLOAT": ("1e999", "nan")}


def flashstep(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def options():
    """(command, option, type) of all that take numbers, as the help pages have them."""
    found = []
    script = flashstep("completion", "bash").stdout
    for command in re.findall(r'^    "(.*)"\) words=', script, re.MULTILINE):
        page = flashstep(*command.split(), "--help").stdout
        for names, kind in re.findall(r"^  (-\S+) (INT|UINT|FLOAT)\b", page, re.MULTILINE):
            found.append((command.split(), names.split(",")[-1], kind))
    return found


class NumbersTest(unittest.TestCase):
    def test_numbers_out_of_range_are_refused(self):
        cases = [(command, option, value) for command, option, kind in options() for value in REFUSED[kind]]
        self.assertGreater(len(cases), 120)  # the help pages were read
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda case: flashstep(*case[0], f"{case[1]}={case[2]}"), cases))
        for (command, option, value), result in zip(cases, results):
            with self.subTest(command=command, option=option, value=value):
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertRegex(result.stderr, rf"^flashstep: expected {option} to be .*, got {re.escape(value)}\n$")

    def test_the_sentences(self):
        for sentence, *arguments in (
                ("expected --seed to be a whole number from 0 on that 64 bits hold, got " + HUGE, "generate", "run",
                 "--prompt", "x", "--seed", HUGE),
                ("expected --ranks to be a whole number that 32 bits hold, got 4294967298", "launch", "--ranks",
                 "4294967298", "--", "train"),
                ("expected --top to be a whole number from 0 to 4294967296, got -1", "data", "inspect", "f", "--top",
                 "-1")):
            result = flashstep(*arguments)
            self.assertEqual((result.returncode, result.stderr), (2, f"flashstep: {sentence}\n"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
