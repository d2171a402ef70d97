"""Words that were given up (docs/words.md) do not come back."""
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ["flashstep", "apps", "examples", "docs", "README.md"]

GIVEN_UP = {  # a pattern, and what is said instead
    r"\bcarriers?\b": "transport",
    r"\bnothing sent\b": "no communication",
    r"\bon (its|their) way (to|from) (the|other) ranks?\b": "in flight",
    r"\bmean is (already )?on its way\b": "the all-reduce is in flight",
    r"\bgradients on their way\b": "gradients in flight",
    r"contestant": "implementation",
    r"\brivals?\b": "baseline",
    r"\b(raced|racing|entrants?)\b": "measured in turns",
}
KEPT = {  # keys of stored results, and a flag that was
    r"\bcarriers?\b": {'"carrier"', '"gradients_carrier"', '"updates_carrier"'},
    r"contestant": {'"contestant"', '"--contestants"'},
}
ANY = re.compile("|".join(GIVEN_UP), re.IGNORECASE)


def files():
    for room in ROOMS:
        path = os.path.join(ROOT, room)
        if os.path.isfile(path):
            yield path
        for folder, _, names in os.walk(path):
            for name in names:
                if name.endswith((".h", ".cc", ".cu", ".cuh", ".md", ".py")):
                    yield os.path.join(folder, name)


class Words(unittest.TestCase):
    def test_given_up_words_are_gone(self):
        seen = 0
        for path in files():
            seen += 1
            with open(path, encoding="utf-8") as file:
                content = file.read()
                for number, line in enumerate(content.splitlines() if ANY.search(content) else (), 1):
                    for pattern, instead in GIVEN_UP.items():
                        text = line
                        for kept in KEPT.get(pattern, ()):
                            text = text.replace(kept, "")
                        found = re.search(pattern, text, re.IGNORECASE)
                        self.assertFalse(found, f"{os.path.relpath(path, ROOT)}:{number}: expected \"{instead}\", "
                                                f"got \"{found and found.group()}\"")
        self.assertGreater(seen, 500)

    def test_the_glossary_stays_small(self):
        with open(os.path.join(ROOT, "docs", "words.md"), encoding="utf-8") as file:
            terms = [line for line in file if line.startswith("| ") and not line.startswith("| word")]
        self.assertLessEqual(len(terms), 60)
        self.assertGreater(len(terms), 20)


if __name__ == "__main__":
    unittest.main()
