#!/usr/bin/env python3
"""Launches captured by PyTorch: the roles of virtual ranks as nodes of a torch.cuda.CUDAGraph.

torch_capture.py LIBRARY [--replays N]

LIBRARY is libgcmoe_torch_probe.so. Per number of ranks: a graph with the launch alone and one with
PyTorch's kernels before and after it, captured in PyTorch's default (global) mode, replayed N
times; every replay's bits must be those of the run outside of any graph.
Exit status: 0 passed, 1 failed, 77 no PyTorch or no GPU here (a line "skipped: reason").
"""

import argparse
import ctypes
import os
import sys
import time

# Eight virtual ranks are sixteen concurrent kernels. Read by CUDA when it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

EXIT_SKIP = 77
RANKS = (1, 2, 8)
TOTAL_TOKENS = 64


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(EXIT_SKIP)


def find_torch():
    try:
        import torch
    except ImportError as error:
        skip(f"no PyTorch for {sys.executable}: {error}")
    if not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} sees no GPU")
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        skip(f"needs an sm_90 GPU; {torch.cuda.get_device_name()} is sm_{capability[0]}"
             f"{capability[1]}")
    return torch


def open_library(path):
    library = ctypes.CDLL(path)
    pointer = ctypes.c_void_p
    signatures = {
        "error": (ctypes.c_char_p, []),
        "create": (pointer, [ctypes.c_int, ctypes.c_int]),
        "destroy": (None, [pointer]),
        "hidden": (ctypes.c_int, [pointer]),
        "tokens": (ctypes.c_int, [pointer, ctypes.c_int]),
        "enqueue": (ctypes.c_int, [pointer, pointer, ctypes.POINTER(pointer)]),
        "differences": (ctypes.c_longlong, [pointer, ctypes.POINTER(pointer)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, "gcmoe_probe_" + name)
        function.restype = result
        function.argtypes = arguments
    return library


class Layer:
    """A layer of virtual ranks, and a tensor of PyTorch's for the rows of each."""

    def __init__(self, torch, library, num_ranks):
        self.torch = torch
        self.library = library
        self.probe = library.gcmoe_probe_create(num_ranks, TOTAL_TOKENS)
        self.check(self.probe is not None)
        hidden = library.gcmoe_probe_hidden(self.probe)
        self.y = [torch.empty((library.gcmoe_probe_tokens(self.probe, rank), hidden),
                              dtype=torch.bfloat16, device="cuda") for rank in range(num_ranks)]
        self.outputs = (ctypes.c_void_p * num_ranks)(*[y.data_ptr() for y in self.y])

    def check(self, is_good):
        if not is_good:
            raise RuntimeError(self.library.gcmoe_probe_error().decode())

    def launch(self):
        stream = self.torch.cuda.current_stream().cuda_stream
        self.check(self.library.gcmoe_probe_enqueue(self.probe, stream, self.outputs) == 0)

    def clear(self):
        for y in self.y:
            y.fill_(float("nan"))

    def sum(self):
        return self.torch.stack([y.float().sum() for y in self.y])

    def differences(self):
        self.torch.cuda.synchronize()
        count = self.library.gcmoe_probe_differences(self.probe, self.outputs)
        self.check(count >= 0)
        return count

    def close(self):
        self.library.gcmoe_probe_destroy(self.probe)


def capture_alone(layer):
    graph = layer.torch.cuda.CUDAGraph()
    with layer.torch.cuda.graph(graph):
        layer.launch()
    return graph


def capture_between(layer):
    """PyTorch's kernels before and after the launch: NaN into y, then the sums of y."""
    graph = layer.torch.cuda.CUDAGraph()
    with layer.torch.cuda.graph(graph):
        layer.clear()
        layer.launch()
        sums = layer.sum()
    return graph, sums


def replay_alone(layer, graph, replays):
    """Numbers that differ, over all replays."""
    wrong = 0
    for _ in range(replays):
        layer.clear()
        graph.replay()
        wrong += layer.differences()
    return wrong


def replay_between(layer, graph, sums, replays):
    """As replay_alone, with the sums; first all replays in a row, then one by one."""
    wanted = layer.sum()
    for _ in range(replays):
        graph.replay()
    wrong = layer.differences()
    for _ in range(replays):
        layer.clear()
        sums.zero_()
        graph.replay()
        wrong += layer.differences() + int((sums != wanted).sum())
    return wrong


def run(torch, library, num_ranks, replays):
    """One line per number of ranks; True = all bits were right."""
    begin = time.monotonic()
    layer = Layer(torch, library, num_ranks)
    layer.clear()
    seen_nan = layer.differences()  # else the comparison below would say nothing
    layer.launch()
    eager = layer.differences()
    alone = replay_alone(layer, capture_alone(layer), replays)
    layer.launch()
    graph, sums = capture_between(layer)
    layer.launch()
    between = replay_between(layer, graph, sums, replays)
    layer.launch()
    after = layer.differences()
    del graph
    layer.close()
    passed = seen_nan > 0 and eager + alone + between + after == 0
    print(f"{num_ranks} ranks: {3 * replays} replays in {time.monotonic() - begin:.1f} s; numbers "
          f"that differ: {eager} on PyTorch's stream, {alone} in a graph, {between} between "
          f"PyTorch's kernels, {after} after the graphs (of {seen_nan} that can): "
          f"{'ok' if passed else 'FAIL'}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description="PyTorch's capture over virtual ranks")
    parser.add_argument("library")
    parser.add_argument("--replays", type=int, default=1000)
    arguments = parser.parse_args()
    torch = find_torch()
    library = open_library(arguments.library)
    # The operator takes stream 0, PyTorch's default one, for "your own".
    with torch.cuda.stream(torch.cuda.Stream()):
        good = [run(torch, library, num_ranks, arguments.replays) for num_ranks in RANKS]
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}: {sum(good)} of {len(good)} "
          f"layers passed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
