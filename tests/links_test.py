"""Links in pages lead to files, and to headings, that are there."""
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOMS = ["docs", "reports", "examples", "flashstep", "README.md"]

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages():
    for room in ROOMS:
        path = os.path.join(ROOT, room)
        if os.path.isfile(path):
            yield path
        for folder, _, names in os.walk(path):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".md"))


def anchor_of(heading):
    """As GitHub makes it."""
    text = re.sub(r"\]\([^)]*\)", "]", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


class Links(unittest.TestCase):
    def test_links_lead_somewhere(self):
        broken, count = [], 0
        for page in pages():
            with open(page, encoding="utf-8") as file:
                content = file.read()
            for link in LINK.findall(content):
                if re.match(r"[a-z]+:", link):
                    continue
                count += 1
                path, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                there = os.path.exists(target)
                if there and anchor and target.endswith(".md"):
                    with open(target, encoding="utf-8") as file:
                        there = anchor in {anchor_of(heading) for heading in HEADING.findall(file.read())}
                if not there:
                    broken.append(f"{os.path.relpath(page, ROOT)}: {link}")
        self.assertEqual(broken, [])
        self.assertGreater(count, 300)


if __name__ == "__main__":
    unittest.main()
