#!/usr/bin/env python3
"""Closed or full standard streams. Usage: streams_test.py PATH_OF_GCMOE [unittest options]"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""

TINY = ["run", "--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "8",
        "--topk", "3", "--ranks", "2"]
DONE, BAD_INPUT = 0, 2


def exit_code(arguments, redirections):
    """Through the shell, which alone can start a command without a stream."""
    return subprocess.run(["sh", "-c", f'exec "$@" {redirections}', "sh", COMMAND, *arguments],
                          check=False, timeout=60, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode


class StreamsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-streams-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_closed_streams_do_not_change_the_exit_code(self):
        # A report that cannot be written is bad input, as on a full disk.
        for closed in itertools.product(["", "<&-"], ["", ">&-"], ["", "2>&-"]):
            for more in ([], ["--spawn"], ["--json"]):
                with self.subTest(closed=closed, more=more):
                    wanted = BAD_INPUT if ">&-" in closed else DONE
                    self.assertEqual(exit_code([*TINY, *more], " ".join(closed)), wanted)
                    bad = [*TINY, *more, "--tokens", "x"]
                    self.assertEqual(exit_code(bad, " ".join(closed)), BAD_INPUT)

    def test_no_file_takes_the_number_of_a_closed_stream(self):
        # A progress bar writes to stderr's number while the layer's file is open.
        synth = ["synth", "--model", "v4.1-flash", "--hidden", "256", "--inter", "128",
                 "--num-experts", "8", "--topk", "3", "--progress"]
        self.assertEqual(exit_code([*synth, "--out", self.path("whole")], ""), DONE)
        self.assertEqual(exit_code([*synth, "--out", self.path("closed")], "2>&-"), DONE)
        files = [open(os.path.join(self.path(name), "model.safetensors"), "rb").read()
                 for name in ("whole", "closed")]
        self.assertEqual(files[0], files[1])

    def test_full_streams(self):
        for redirections, wanted in [("2>/dev/full", DONE), (">/dev/full", BAD_INPUT),
                                     (">/dev/full 2>/dev/full", BAD_INPUT)]:
            with self.subTest(redirections=redirections):
                progress = [*TINY, "--progress", "--launches", "3"]
                self.assertEqual(exit_code(progress, redirections), wanted)
                self.assertEqual(exit_code(["rnu"], redirections), BAD_INPUT)

    def test_a_full_disk_is_no_success(self):
        # A short report, which is written at the end, and one that fills the buffer before.
        long = [*TINY, "--experts", "1536", "--tokens", "2048", "--no-verify", "--json"]
        for arguments in (["info", "--json"], long):
            with open("/dev/full", "w", encoding="ascii") as full:
                result = subprocess.run([COMMAND, *arguments], stdout=full,
                                        stderr=subprocess.PIPE, check=False, text=True)
            self.assertEqual(result.returncode, BAD_INPUT, arguments)
            self.assertIn("standard output", result.stderr)
            self.assertNotIn("a bug in gcmoe", result.stderr)


if __name__ == "__main__":
    COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
