#!/usr/bin/env python3
"""Ranks as processes, from outside. Usage: processes_test.py PATH_OF_GCMOE [unittest options]"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import safetensors_io as st

COMMAND = ""

# A layer that runs in a blink: experts divide by 1, 2, 3, 4 and 8.
TINY = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "24",
        "--topk", "3"]
# Launches that go on until somebody stops them.
LONG = TINY + ["--tokens", "8", "--launches", "1000000", "--deadline", "1"]


def start(*arguments):
    return subprocess.Popen([COMMAND, "run", *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*arguments):
    return finish(start(*arguments))


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def heaps_of(pid):
    """The heaps of ranks that a process has mapped."""
    try:
        with open(f"/proc/{pid}/maps", encoding="ascii") as file:
            return file.read().count("memfd:gcmoe-heap")
    except OSError:
        return 0


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.01)


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-processes-")
        self.addCleanup(shutil.rmtree, self.folder)
        os.environ["TMPDIR"] = self.folder
        self.session = os.path.join(self.folder, "session")

    def path(self, name):
        return os.path.join(self.folder, name)

    def by_hand(self, ranks, *arguments, options_of=None):
        """Starts each rank by itself; their results in the order of `ranks`."""
        processes = [start(*arguments, "--session", self.session, "--rank", str(rank),
                           *(options_of or {}).get(rank, [])) for rank in ranks]
        return [finish(process) for process in processes]

    def assert_nothing_left(self):
        self.assertEqual(glob.glob(self.path("gcmoe-*")), [])
        self.assertFalse(os.path.exists(self.session))

    def launching(self, *arguments):
        """A spawned run whose ranks have met and launch, and its ranks' processes."""
        process = start(*LONG, "--ranks", "4", "--spawn", *arguments)
        ranks = self.wait_until_mapped(process, 4)
        time.sleep(0.2)
        return process, ranks

    def wait_until_mapped(self, process, num_ranks):
        """The processes of a spawned run's ranks, when each has mapped the heaps of all."""
        wait_until(lambda: len(children_of(process.pid)) == num_ranks)
        wait_until(lambda: all(heaps_of(pid) == num_ranks for pid in children_of(process.pid)), 60)
        return children_of(process.pid)

    def test_spawned_ranks_give_the_bits_of_threads(self):
        options = TINY + ["--ranks", "8", "--tokens", "0,1,2,3,4,5,6,7", "--shared"]
        threads = run(*options, "--out", self.path("threads"))
        processes = run(*options, "--out", self.path("processes"), "--spawn", "--launches", "3",
                        "--json")
        self.assertEqual(threads.returncode, 0, threads.stderr)
        self.assertEqual(processes.returncode, 0, processes.stderr)
        self.assertEqual(len(processes.stdout.splitlines()), 1)
        report = json.loads(processes.stdout)
        self.assertIs(report["verified"], True)
        self.assertEqual(report["processes"], 8)
        self.assertEqual(report["tokens"], 28)
        with open(self.path("threads"), "rb") as one, open(self.path("processes"), "rb") as other:
            self.assertEqual(one.read(), other.read())
        self.assert_nothing_left()

    def test_by_hand_rank_0_reports_for_all(self):
        results = self.by_hand([2, 0, 1], *TINY, "--ranks", "3")
        self.assertEqual([result.returncode for result in results], [0, 0, 0])
        self.assertEqual(results[0].stdout,
                         "rank 2 of 3: 1 launch of 16 tokens, handed to rank 0\n")
        self.assertTrue(results[1].stdout.endswith("verified\n"), results[1].stdout)
        self.assertIn("ranks as processes", results[1].stdout)
        self.assert_nothing_left()

    def test_another_rank_says_that_it_writes_no_file(self):
        out = self.path("y1")
        results = self.by_hand([0, 1], *TINY, "--ranks", "2", options_of={1: ["--out", out]})
        self.assertEqual([result.returncode for result in results], [0, 0])
        self.assertIn(f"--out {out}: not written by rank 1; rank 0 writes its own",
                      results[1].stdout)
        self.assertFalse(os.path.exists(out))
        result = run(*TINY, "--ranks", "2", "--spawn", "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("not written", result.stdout)
        self.assertTrue(os.path.exists(out))

    def test_an_unusable_tmpdir_is_named(self):
        os.environ["TMPDIR"] = self.path("missing")
        result = run(*TINY, "--ranks", "2", "--spawn")
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"--spawn: no folder for the ranks to meet in TMPDIR = "
                      f"'{self.path('missing')}': No such file", result.stderr)

    def test_rounds_back_to_back(self):
        # Every rank of the second round comes while rank 0 of the first one still verifies.
        arguments = TINY + ["--ranks", "2", "--tokens", "2048"]
        def start_round(ranks):
            return [start(*arguments, "--session", self.session, "--rank", str(rank))
                    for rank in ranks]
        zero, one = start_round([0, 1])
        self.assertEqual(finish(one).returncode, 0)
        os.kill(zero.pid, signal.SIGSTOP)
        self.assertTrue(os.path.exists(self.session), "rank 0 has ended too early for this test")
        second = start_round([1, 0])
        time.sleep(0.7)
        self.assertEqual([rank.poll() for rank in second], [None, None])
        os.kill(zero.pid, signal.SIGCONT)
        for result in [finish(zero)] + [finish(rank) for rank in second]:
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_nothing_left()

    def test_ranks_of_the_next_round_come_while_one_launches(self):
        def start_rank(rank, launches):
            return start(*TINY, "--ranks", "2", "--tokens", "256", "--deadline", "60",
                         "--launches", launches, "--session", self.session, "--rank", str(rank))
        first = [start_rank(rank, "200") for rank in (0, 1)]
        wait_until(lambda: [heaps_of(rank.pid) for rank in first] == [2, 2])
        second = [start_rank(rank, "1") for rank in (1, 0)]
        for result in [finish(rank) for rank in first + second]:
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_nothing_left()

    def test_a_round_that_does_not_end_is_named(self):
        zero, one = [start(*TINY, "--ranks", "2", "--tokens", "2048", "--session", self.session,
                           "--rank", str(rank)) for rank in (0, 1)]
        self.assertEqual(finish(one).returncode, 0)
        os.kill(zero.pid, signal.SIGSTOP)
        second = self.by_hand([0, 1], *TINY, "--ranks", "2", "--deadline", "0.5")
        self.assertEqual([result.returncode for result in second], [2, 3])
        self.assertRegex(second[0].stderr, f"in use by a live session.* is process {zero.pid}, ")
        self.assertRegex(second[1].stderr, f"belongs to process {zero.pid}, which has let nobody")
        os.kill(zero.pid, signal.SIGCONT)
        self.assertEqual(finish(zero).returncode, 0)
        self.assert_nothing_left()

    def damaged_checkpoint(self, is_damaged=True):
        """A layer whose expert 23 no rank can pack; of two ranks, rank 1 has it."""
        folder = self.path("layer")
        subprocess.run([COMMAND, "synth", "--out", folder, "--model", "v4.1-flash", "--hidden",
                        "256", "--inter", "128", "--num-experts", "24", "--topk", "3"],
                       check=True, capture_output=True)
        path = os.path.join(folder, "model.safetensors")
        tensors = st.read(path)
        name = "layers.0.ffn.experts.23.w1.scale"
        dtype, shape, data = tensors[name]
        if is_damaged:
            tensors[name] = (dtype, shape, b"\xff" + data[1:])  # no number
        st.write(path, tensors)
        return ["--checkpoint", folder, "--tokens", "16", "--ranks", "2", "--deadline", "60"]

    def test_a_spawned_rank_that_fails_early_ends_all(self):
        begin = time.monotonic()
        result = run(*self.damaged_checkpoint(), "--spawn", "--json")
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual(result.returncode, 2, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["error"], "bad_input")
        self.assertIn("expert 23", report["reason"])
        self.assertEqual(report["ranks"][1]["exit_code"], 2)
        self.assert_nothing_left()

    def copy_of_layer(self, name, changed=None):
        """The layer in another folder, with the first byte of one tensor changed."""
        folder = self.path(name)
        shutil.copytree(self.path("layer"), folder)
        if changed is not None:
            path = os.path.join(folder, "model.safetensors")
            tensors = st.read(path)
            dtype, shape, data = tensors[changed]
            tensors[changed] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
            st.write(path, tensors)
        return folder

    def packed(self, folder, name):
        """The files of both ranks."""
        paths = [self.path(f"{name}{rank}") for rank in (0, 1)]
        for rank, path in enumerate(paths):
            subprocess.run([COMMAND, "pack", "--checkpoint", folder, "--ranks", "2", "--rank",
                            str(rank), "--out", path], check=True, capture_output=True)
        return paths

    def assert_all_refuse(self, results, words):
        self.assertEqual([result.returncode for result in results], [2, 2], results[0].stdout)
        self.assertIn(words, results[0].stderr)
        self.assertEqual(results[0].stderr, results[1].stderr)
        self.assert_nothing_left()

    def test_weights_are_compared_and_paths_are_not(self):
        arguments = self.damaged_checkpoint(is_damaged=False)[2:]
        here = self.path("layer")
        there = self.copy_of_layer("there")
        # A tensor of an expert that rank 0 alone packs: rank 1 sees it all the same.
        other = self.copy_of_layer("other", "layers.0.ffn.experts.0.w1.weight")
        for of_rank_1, words in [
                (["--checkpoint", there], None),
                (["--packed", *self.packed(there, "same")], None),
                (["--checkpoint", other], "session: ranks differ: fingerprint of the weights = "),
                (["--packed", *self.packed(other, "else")],
                 "session: ranks differ: fingerprint of the weights = "),
        ]:
            for of_rank_0 in (["--checkpoint", here], ["--packed", *self.packed(here, "here")]):
                with self.subTest(of_rank_0=of_rank_0[0], of_rank_1=of_rank_1):
                    results = self.by_hand([0, 1], *arguments,
                                           options_of={0: of_rank_0, 1: of_rank_1})
                    if words is not None:
                        self.assert_all_refuse(results, words)
                        continue
                    self.assertEqual([result.returncode for result in results], [0, 0],
                                     results[0].stderr)
                    self.assertTrue(results[0].stdout.endswith("verified\n"))

    def rank_whose_checkpoint_has_gone(self, arguments):
        """A spawned run whose rank 1 finds no checkpoint; None: it was faster than this test, or
        rank 0 so slow that it found none either."""
        process = start(*arguments, "--spawn", "--json")
        wait_until(lambda: len(children_of(process.pid)) == 2)
        late = children_of(process.pid)[1]
        os.kill(late, signal.SIGSTOP)
        wait_until(lambda: glob.glob(self.path("gcmoe-*/rank0")))
        os.rename(self.path("layer"), self.path("gone"))
        begin = time.monotonic()
        os.kill(late, signal.SIGCONT)
        result = finish(process)
        os.rename(self.path("gone"), self.path("layer"))
        self.assertLess(time.monotonic() - begin, 5)
        if result.returncode == 0 or "session: rank 0: " in json.loads(result.stdout)["reason"]:
            return None
        return result

    def test_a_spawned_rank_that_fails_before_it_joins_ends_all(self):
        arguments = self.damaged_checkpoint(is_damaged=False)
        results = (self.rank_whose_checkpoint_has_gone(arguments) for _ in range(20))
        result = next(result for result in results if result is not None)
        self.assertEqual(result.returncode, 2, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["error"], "bad_input")
        self.assertIn("--checkpoint", report["reason"])
        self.assertEqual(report["ranks"][1]["exit_code"], 2)
        self.assertEqual(report["ranks"][0]["signal"], signal.SIGTERM)
        self.assert_nothing_left()

    def test_a_rank_by_hand_that_fails_early_tells_the_others(self):
        begin = time.monotonic()
        results = self.by_hand([0, 1], *self.damaged_checkpoint())
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual([result.returncode for result in results], [2, 2])
        self.assertIn("session: rank 1: ", results[0].stderr)
        self.assertIn("expert 23", results[0].stderr)
        self.assertEqual(results[0].stderr, results[1].stderr)
        self.assert_nothing_left()

    def test_every_rank_says_in_json_what_it_did(self):
        results = self.by_hand([0, 1], *TINY, "--ranks", "2", "--json")
        self.assertIs(json.loads(results[0].stdout)["verified"], True)
        self.assertEqual(json.loads(results[1].stdout)["handed_over"], True)

    def test_ranks_that_differ_all_say_the_same(self):
        for changed, words in [
                (["--ring-blocks", "2"], "default.ring_blocks = "),
                (["--capacity", "32"], "max_tokens = 16 on rank 0 but max_tokens = 32 on rank 1"),
                (["--index-type", "int32"], "index_type = int64 on rank 0 but index_type = int32"),
                (["--clamp", "3"], "activation.clamp = 10 on rank 0 but activation.clamp = 3"),
                (["--seed", "9"], "tokens and routing = "),
                (["--factor", "2"], "tokens and routing = "),
                (["--launches", "2"], "launches = 1 on rank 0 but launches = 2 on rank 1"),
                (["--ranks", "3"], "num_ranks = 2 on rank 0 but num_ranks = 3 on rank 1"),
        ]:
            with self.subTest(changed=changed):
                results = self.by_hand([0, 1], *TINY, "--ranks", "2", "--deadline", "20",
                                       options_of={1: changed})
                self.assertEqual([result.returncode for result in results], [2, 2])
                self.assertIn(words, results[0].stderr)
                self.assertEqual(results[0].stderr, results[1].stderr)
                self.assert_nothing_left()

    def test_the_models_name_is_not_compared(self):
        files = []
        for rank, layout in enumerate(["v4", "v4.1"]):
            layer, packed = self.path(layout), self.path(f"packed-{layout}")
            for words in [["synth", "--out", layer, "--model", "v4.1-flash", "--hidden", "256",
                           "--inter", "128", "--num-experts", "24", "--topk", "3", "--layout",
                           layout],
                          ["pack", "--checkpoint", layer, "--ranks", "2", "--rank", str(rank),
                           "--out", packed]]:
                subprocess.run([COMMAND, *words], check=True, capture_output=True)
            files.append(packed)
        mixed = run("--packed", *files, "--tokens", "4")
        self.assertEqual(mixed.returncode, 0, mixed.stderr)
        options_of = {rank: ["--checkpoint", self.path(layout)]
                      for rank, layout in enumerate(["v4", "v4.1"])}
        for result in self.by_hand([0, 1], "--ranks", "2", "--tokens", "4", "--deadline", "20",
                                   options_of=options_of):
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_rank_that_never_comes(self):
        begin = time.monotonic()
        results = self.by_hand([0, 2], *TINY, "--ranks", "3", "--deadline", "1")
        self.assertLess(time.monotonic() - begin, 3)
        for result in results:
            self.assertEqual(result.returncode, 3)
            self.assertIn("rank 1 of 3 has not come within 1 s", result.stderr)
        self.assert_nothing_left()

    def test_rank_0_that_never_comes(self):
        result, = self.by_hand([1], *TINY, "--ranks", "2", "--deadline", "0.5", "--json")
        self.assertEqual(result.returncode, 3)
        report = json.loads(result.stdout)
        self.assertEqual(report["error"], "stalled")
        self.assertIn("rank 0 of 2 has not come within 0.5 s", report["reason"])

    def test_a_killed_rank_is_named_by_all_others(self):
        process, ranks = self.launching("--json")
        os.kill(ranks[2], signal.SIGKILL)
        begin = time.monotonic()
        result = finish(process)
        self.assertLess(time.monotonic() - begin, 2.5)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1)
        report = json.loads(result.stdout)
        self.assertEqual(report["error"], "stalled")
        self.assertIs(report["verified"], False)
        self.assertEqual(report["ranks"][2]["signal"], signal.SIGKILL)
        for rank in (0, 1, 3):
            self.assertEqual(report["ranks"][rank]["exit_code"], 3)
            self.assertRegex(report["ranks"][rank]["last_word"], r"(peer|of) rank 2\b")
        self.assert_nothing_left()

    def test_a_stopped_rank_is_named_and_ended(self):
        process, ranks = self.launching()
        os.kill(ranks[0], signal.SIGSTOP)
        result = finish(process)
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stderr, r"(peer|of) rank 0\b")
        for pid in ranks:
            self.assertFalse(os.path.exists(f"/proc/{pid}"))
        self.assert_nothing_left()

    def test_signals_are_passed_on_and_the_command_ends_by_them(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process, ranks = self.launching()
            process.send_signal(number)
            result = finish(process)
            self.assertEqual(result.returncode, -number)
            for pid in ranks:
                self.assertFalse(os.path.exists(f"/proc/{pid}"))
            self.assert_nothing_left()

    def test_ranks_end_with_a_command_that_was_killed(self):
        process, ranks = self.launching()
        process.kill()
        process.communicate()
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks))

    def test_survivors_may_work_until_they_notice(self):
        # Role 2 of rank 0 lasts longer than the deadline and the grace together: it notices that
        # rank 1 is lost only after its own work, and says so.
        process = start("--model", "v4-flash", "--reduced", "2", "--experts", "16", "--ranks", "2",
                        "--tokens", "4096", "--no-verify", "--spawn", "--deadline", "0.5",
                        "--json", "--compute-units", "1")
        ranks = self.wait_until_mapped(process, 2)
        time.sleep(0.5)
        os.kill(ranks[1], signal.SIGKILL)
        result = finish(process, timeout=300)
        self.assertEqual(result.returncode, 3, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["ranks"][0]["exit_code"], 3)
        self.assertRegex(report["reason"], r"(peer|of) rank 1\b")
        self.assert_nothing_left()

    def test_a_command_that_ignores_its_childrens_ends(self):
        # An inherited SIG_IGN of SIGCHLD: the kernel would take the ranks' ends for itself.
        result = subprocess.run(
            [COMMAND, "run", *TINY, "--ranks", "2", "--spawn"], check=False, timeout=60,
            capture_output=True, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_nothing_left()

    def test_ignored_signals_stay_ignored(self):
        # As under nohup. SIGTERM comes through all the same.
        process = subprocess.Popen(
            [COMMAND, "run", *LONG, "--ranks", "2", "--spawn"], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_until_mapped(process, 2)
        process.send_signal(signal.SIGHUP)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.communicate(timeout=3)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(finish(process).returncode, -signal.SIGTERM)
        self.assert_nothing_left()

    def test_spawn_with_a_value(self):
        result = run(*TINY, "--ranks", "2", "--spawn=true")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("--spawn true: takes no value", result.stderr)

    def test_check_judges_suites_through_processes(self):
        result = subprocess.run([COMMAND, "check", "--case", "v4-flash-t4", "--spawn", "--json"],
                                check=False, capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("16 of 16 rank checks passed", result.stdout)
        self.assertIn("ranks as processes with the bits of threads", result.stdout)
        report = json.loads(result.stdout.splitlines()[-1])
        self.assertIs(report["processes"], True)
        self.assertEqual((report["rank_checks"], report["failed"]), (16, 0))
        self.assert_nothing_left()

    def test_a_folder_that_others_can_reach(self):
        os.mkdir(self.session)
        os.chmod(self.session, 0o755)
        for result in self.by_hand([0, 1], *TINY, "--ranks", "2", "--deadline", "1"):
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"--session: session folder '{self.session}' has mode 0755, not 0700",
                          result.stderr)

    def test_refusals_name_the_option(self):
        for arguments, words in [
                (["--rank", "0"], "--rank 0: needs --session"),
                (["--session", self.session], "--session " + self.session + ": needs --rank"),
                (["--spawn", "--rank", "0"], "--spawn: starts all ranks"),
                (["--rank", "2", "--session", self.session, "--ranks", "2"],
                 "--rank 2: must be in 0..1"),
                (["--rank", "-1", "--session", self.session], "--rank -1: must be in 0..7"),
                (["--spawn", "--executor", "stepper"], "--executor stepper"),
                (["--spawn", "--ranks", "5"], "--ranks 5: does not divide the 24 experts"),
        ]:
            with self.subTest(arguments=arguments):
                result = run(*TINY, *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(words, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assert_nothing_left()


if __name__ == "__main__":
    COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
