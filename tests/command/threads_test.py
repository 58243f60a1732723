#!/usr/bin/env python3
"""Too few threads for the command. Usage: threads_test.py PATH_OF_GCMOE

Runs as a user of its own, whose processes and threads the system limits: needs root to become it.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""
NOBODY = 54321  # a user that runs nothing else

LAYER = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "8",
         "--topk", "3", "--ranks", "2", "--tokens", "4"]


@unittest.skipIf(os.geteuid() != 0, "only root can become a user that runs nothing else")
class ThreadsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-threads-")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o777)
        self.command = os.path.join(self.folder, "gcmoe")  # where that user may read it
        shutil.copy(COMMAND, self.command)

    def limited(self, most, *arguments):
        """The command with at most so many threads of its user."""
        def become_nobody():
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))

        environment = {**os.environ, "TMPDIR": self.folder, "HOME": self.folder}
        return subprocess.run([self.command, *arguments], check=False, capture_output=True,
                              text=True, timeout=120, cwd=self.folder, env=environment,
                              preexec_fn=become_nobody)

    def sweep(self, *arguments, exit_codes=(2,)):
        """From one thread on until it works; before that each refusal is a sentence."""
        refusals = []
        for most in [*range(1, 12), 16, 24, 32, 64, 128, 256, 1024]:
            result = self.limited(most, *arguments)
            if result.returncode == 0:
                return refusals
            self.assertIn(result.returncode, exit_codes, (most, result.stdout, result.stderr))
            self.assertTrue(result.stderr.startswith("gcmoe"), result.stderr)
            self.assertNotIn("bug", result.stderr)
            self.assertRegex(result.stderr, "no threads|no process|no more threads")
            refusals.append(result.stderr)
        self.fail(f"never worked: {refusals[-1]}")

    def test_run(self):
        self.assertGreater(len(self.sweep("run", *LAYER)), 0)

    def test_check(self):
        self.assertGreater(len(self.sweep("check", "--case", "v4-flash-t4")), 0)

    def test_ranks_as_processes(self):
        # Exit code 3: another rank waited for the one that had too few.
        refusals = self.sweep("run", *LAYER, "--spawn", "--deadline", "1", exit_codes=(2, 3))
        self.assertGreater(len(refusals), 0)

    def test_pack_needs_none(self):
        synth = ["synth", "--out", "layer", "--model", "v4.1-flash", "--reduced", "16"]
        self.assertEqual(self.limited(1, *synth).returncode, 0)
        result = self.limited(1, "pack", "--checkpoint", "layer", "--out", "packed", "--verify")
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
