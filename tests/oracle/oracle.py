"""One MoE layer in numpy, from the safetensors files alone: none of the project's code.

FP64 sums; rounding points as the operator's: the second GEMM's input to E4M3 with one FP32 scale
per 128 columns, every slot's row and the shared row to BF16, the sum of the slots in FP32 and slot
order, then the shared row, then one rounding to BF16.
"""

import json
import os
import struct

import ml_dtypes
import numpy as np

DTYPES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": np.uint8,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.uint8,
    "U8": np.uint8,
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
CHUNK = 128
MAX_REL_L2 = 1e-2
MIN_COSINE = 0.99995


def read_safetensors(path):
    """All tensors of a file. 8 bytes of header length, a JSON header, then the data."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def ue8m0(codes):
    """2^(code - 127), exact."""
    return np.ldexp(1.0, codes.astype(np.int32) - 127)


def fp4_matrix(tensors, name):
    """(rows, cols) FP64. Two E2M1 codes a byte, even column low; a scale per row and 32 columns."""
    packed = tensors[name + ".weight"]
    scale = ue8m0(tensors[name + ".scale"])
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    return E2M1[nibbles] * np.repeat(scale, 32, axis=1)


def fp8_matrix(tensors, name):
    """(rows, cols) FP64 of E4M3 codes with a grid of scales, blocks as the shapes say."""
    codes = tensors[name + ".weight"].astype(np.float64)
    scale = tensors[name + ".scale"]
    scale = scale.astype(np.float64) if scale.dtype == np.float32 else ue8m0(scale)
    block = (-(-codes.shape[0] // scale.shape[0]), -(-codes.shape[1] // scale.shape[1]))
    assert block in ((128, 128), (32, 32), (1, 32)), block
    spread = np.repeat(np.repeat(scale, block[0], axis=0), block[1], axis=1)
    return codes * spread[: codes.shape[0], : codes.shape[1]]


def bias_of(tensors, name):
    bias = tensors.get(name + ".bias")
    return 0.0 if bias is None else bias.astype(np.float64)


class Layer:
    """Config and weights of one layer of a checkpoint folder."""

    def __init__(self, folder, layer=0):
        with open(os.path.join(folder, "config.json"), encoding="ascii") as file:
            config = json.load(file)
        config = config.get("text_config", config)
        self.hidden = config["hidden_size"]
        self.num_experts = config["n_routed_experts"]
        self.clamp = config.get("swiglu_limit", np.inf)
        self.alpha = config.get("swiglu_alpha", 1.0)
        self.beta = config.get("swiglu_beta", 0.0)
        tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                tensors.update(read_safetensors(os.path.join(folder, name)))
        self.prefix = f"layers.{layer}.ffn."
        self.tensors = tensors
        self.has_shared = self.prefix + "shared_experts.w1.weight" in tensors

    def activation(self, gate, up):
        gate = np.minimum(gate, self.clamp)
        up = np.clip(up, -self.clamp, self.clamp)
        return gate / (1.0 + np.exp(-self.alpha * gate)) * (up + self.beta)

    def run_expert(self, expert, x, weight):
        """A routed expert. x (n, hidden) FP64, weight (n) float32 -> (n, hidden) bfloat16."""
        name = f"{self.prefix}experts.{expert}."
        gate = x @ fp4_matrix(self.tensors, name + "w1").T + bias_of(self.tensors, name + "w1")
        up = x @ fp4_matrix(self.tensors, name + "w3").T + bias_of(self.tensors, name + "w3")
        gated = self.activation(gate, up) * weight.astype(np.float64)[:, None]
        sums = requantise(gated) @ fp4_matrix(self.tensors, name + "w2").T
        bias = weight[:, None] * np.float32(bias_of(self.tensors, name + "w2"))
        return (sums.astype(np.float32) + bias).astype(ml_dtypes.bfloat16)

    def run_shared(self, x):
        name = self.prefix + "shared_experts."
        gate = x @ fp8_matrix(self.tensors, name + "w1").T
        up = x @ fp8_matrix(self.tensors, name + "w3").T
        sums = requantise(self.activation(gate, up)) @ fp8_matrix(self.tensors, name + "w2").T
        return sums.astype(np.float32).astype(ml_dtypes.bfloat16)

    def run(self, inputs):
        """One rank. -> (tokens, hidden) bfloat16."""
        x = dequantise(inputs["x"], inputs["x_scale"])
        ids = inputs["topk_idx"]
        weights = inputs["topk_weights"]
        tokens, topk = ids.shape
        rows = np.zeros((tokens, topk, self.hidden), dtype=ml_dtypes.bfloat16)
        for expert in np.unique(ids[ids >= 0]):
            token, slot = np.nonzero(ids == expert)
            rows[token, slot] = self.run_expert(expert, x[token], weights[token, slot])
        total = np.zeros((tokens, self.hidden), dtype=np.float32)
        for slot in range(topk):
            live = ids[:, slot] >= 0
            total[live] += rows[live, slot].astype(np.float32)
        if self.has_shared and tokens > 0:
            total += self.run_shared(x).astype(np.float32)
        return total.astype(ml_dtypes.bfloat16)


def dequantise(codes, scale):
    """(n, K) E4M3 and (n, K / 128) float32 -> FP64."""
    return codes.astype(np.float64) * np.repeat(scale.astype(np.float64), CHUNK, axis=1)


def requantise(values):
    """FP64 rows through E4M3 with one FP32 scale per 128 columns and back to FP64."""
    rows, cols = values.shape
    groups = values.astype(np.float32).reshape(rows, cols // CHUNK, CHUNK)
    amax = np.maximum(np.abs(groups).max(axis=2, keepdims=True), np.float32(1e-4))
    scale = amax / np.float32(448)
    scaled = np.clip(groups * (np.float32(448) / amax), -448, 448)
    codes = scaled.astype(ml_dtypes.float8_e4m3fn)
    return (codes.astype(np.float64) * scale.astype(np.float64)).reshape(rows, cols)


def compare(seen, wanted):
    """Relative L2 and cosine of two (tokens, hidden) arrays; (0, 1) if both are zero."""
    seen = seen.astype(np.float64).ravel()
    wanted = wanted.astype(np.float64).ravel()
    error = np.linalg.norm(seen - wanted)
    if error == 0.0:
        return 0.0, 1.0
    size = np.linalg.norm(wanted)
    if not size > 0.0:
        return float("inf"), 0.0
    return error / size, float(seen @ wanted / (np.linalg.norm(seen) * size))


def is_near(rel_l2, cosine):
    """False for NaN too."""
    return rel_l2 <= MAX_REL_L2 and cosine >= MIN_COSINE


def rank_inputs(tensors, rank):
    keys = ("x", "x_scale", "topk_idx", "topk_weights")
    return {key: tensors[f"rank{rank}.{key}"] for key in keys}
