"""Threads of the program that wait for each other sleep soon, unless the user has chosen otherwise."""
import os
import re
import subprocess
import unittest

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def spins(**chosen):
    """What libgomp says it took, and the arguments as they came."""
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **chosen}
    told = subprocess.run([PROGRAM, "no such", "command"], env=environment, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2 and '"no such"' in told.stderr, told
    return int(re.search(r"GOMP_SPINCOUNT = '(\d+)'", told.stderr)[1])


class OpenMpSpinsTest(unittest.TestCase):
    def test_few_unless_chosen(self):
        self.assertEqual(spins(), 10000)
        self.assertEqual(spins(GOMP_SPINCOUNT="77"), 77)
        self.assertEqual(spins(OMP_WAIT_POLICY="PASSIVE"), 0)
        self.assertGreater(spins(OMP_WAIT_POLICY="ACTIVE"), 1000000)

    def test_other_programs_get_what_the_user_chose(self):
        def inherited(**chosen):
            environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
            command = [PROGRAM, "launch", "-n", "1", "--", "sh", "-c", 'echo "<$GOMP_SPINCOUNT$FLASHSTEP_CHOSE_SPINS>"']
            told = subprocess.run(command, env=environment | chosen, capture_output=True, text=True, timeout=60)
            return re.search("<(.*)>", told.stdout)[1]

        self.assertEqual(inherited(), "")
        self.assertEqual(inherited(GOMP_SPINCOUNT="10000"), "10000")


if __name__ == "__main__":
    unittest.main()
