"""Reads one layer of a checkpoint folder in any layout, in numpy, as docs/checkpoints.md says."""

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
EVEN_FIRST = np.array([0, 1, 2, 4, 0.5, 1.5, 3, 6])  # magnitudes; the first of two that tie wins
BLOCK = 128


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


def from_mxfp4(packed, scales):
    """(rows, cols) FP64. Two E2M1 codes a byte, even column low; a scale per row and 32 columns."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    return E2M1[nibbles] * np.repeat(ue8m0(scales), 32, axis=1)


def from_fp8(codes, scale):
    """(rows, cols) FP64 of E4M3 codes with a grid of scales, blocks as the shapes say."""
    codes = codes.astype(np.float64)
    scale = scale.astype(np.float64) if scale.dtype == np.float32 else ue8m0(scale)
    block = (-(-codes.shape[0] // scale.shape[0]), -(-codes.shape[1] // scale.shape[1]))
    assert block in ((128, 128), (32, 32), (1, 32)), block
    spread = np.repeat(np.repeat(scale, block[0], axis=0), block[1], axis=1)
    return codes * spread[: codes.shape[0], : codes.shape[1]]


def nearest(scaled):
    """The E2M1 value next to each number, the even code of two."""
    which = np.argmin(np.abs(np.abs(scaled)[..., None] - EVEN_FIRST), axis=-1)
    return np.copysign(EVEN_FIRST[which], scaled)


def quantise_mxfp4(values):
    """FP32 values through MXFP4 and back, FP64: OCP's scale or the next, by squared error."""
    groups = values.astype(np.float64).reshape(values.shape[0], -1, 32)
    _, exponent = np.frexp(np.abs(groups).max(axis=2, keepdims=True))  # in [0.5, 1) * 2^exponent
    results, errors = [], []
    for step in (0, 1):
        scale = np.ldexp(1.0, exponent - 1 - 2 + step)
        results.append(nearest(groups / scale) * scale)
        errors.append(((results[-1] - groups) ** 2).sum(axis=2, keepdims=True))
    return np.where(errors[0] <= errors[1], results[0], results[1]).reshape(values.shape)


def quantise_fp8(values):
    """FP32 values through E4M3 with an FP32 scale per 128x128 and back, FP64."""
    out = np.empty(values.shape)
    for row in range(0, values.shape[0], BLOCK):
        for col in range(0, values.shape[1], BLOCK):
            block = values[row : row + BLOCK, col : col + BLOCK]
            amax = np.maximum(np.abs(block).max(), np.float32(1e-4))
            codes = (block * (np.float32(448) / amax)).astype(ml_dtypes.float8_e4m3fn)
            out[row : row + BLOCK, col : col + BLOCK] = codes.astype(np.float64) * np.float64(
                amax / np.float32(448))
    return out


class Checkpoint:
    """Config and matrices of one layer. Matrices are "gate", "up" and "down", (rows, cols) FP64."""

    def __init__(self, folder, layer=0, up_first=False):
        with open(os.path.join(folder, "config.json"), encoding="ascii") as file:
            config = json.load(file)
        self.config = config.get("text_config", config)
        self.tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                self.tensors.update(read_safetensors(os.path.join(folder, name)))
        nested = f"model.layers.{layer}.mlp."
        is_nested = any(name.startswith(nested) for name in self.tensors)
        self.prefix = nested if is_nested else f"layers.{layer}.ffn."
        self.words = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj",
                      "scale": "weight_scale_inv"}
        if not is_nested:
            self.words = {"gate": "w1", "up": "w3", "down": "w2", "scale": "scale"}
        self.up_first = up_first
        self.is_gpt_oss = self.prefix + "experts.gate_up_proj_blocks" in self.tensors
        self.is_w13 = self.prefix + "experts.w13_weight" in self.tensors
        self.has_shared = self.shared_name("gate") + ".weight" in self.tensors

    def shared_name(self, matrix):
        return f"{self.prefix}shared_experts.{self.words[matrix]}"

    def stacked(self, expert, matrix, first, second):
        """Rows of one matrix out of the two stacked tensors of all experts."""
        rows = self.tensors[f"{self.prefix}experts.{second if matrix == 'down' else first}"][expert]
        if rows.ndim == 3:  # blocks of 16 bytes
            rows = rows.reshape(rows.shape[0], -1)
        if matrix == "down":
            return rows
        is_up = matrix == "up"
        if self.is_gpt_oss:
            return rows[is_up::2]
        half = rows.shape[0] // 2
        return rows[half:] if is_up != self.up_first else rows[:half]

    def routed(self, expert, matrix):
        if self.is_gpt_oss:
            return from_mxfp4(
                self.stacked(expert, matrix, "gate_up_proj_blocks", "down_proj_blocks"),
                self.stacked(expert, matrix, "gate_up_proj_scales", "down_proj_scales"))
        if self.is_w13:
            return from_mxfp4(
                self.stacked(expert, matrix, "w13_weight", "w2_weight"),
                self.stacked(expert, matrix, "w13_weight_scale", "w2_weight_scale"))
        name = f"{self.prefix}experts.{expert}.{self.words[matrix]}"
        weight = self.tensors[name + ".weight"]
        if weight.dtype == ml_dtypes.bfloat16:
            return quantise_mxfp4(weight.astype(np.float32))
        scale = self.tensors[f"{name}.{self.words['scale']}"]
        if weight.dtype == ml_dtypes.float8_e4m3fn:
            return quantise_mxfp4(from_fp8(weight, scale).astype(np.float32))
        return from_mxfp4(weight, scale)

    def bias(self, expert, matrix):
        if self.is_gpt_oss:
            both = self.tensors[f"{self.prefix}experts.gate_up_proj_bias"][expert]
            down = self.tensors[f"{self.prefix}experts.down_proj_bias"][expert]
            bias = {"gate": both[0::2], "up": both[1::2], "down": down}[matrix]
        else:
            bias = self.tensors.get(f"{self.prefix}experts.{expert}.{self.words[matrix]}.bias")
        return 0.0 if bias is None else bias.astype(np.float64)

    def shared(self, matrix):
        name = self.shared_name(matrix)
        weight = self.tensors[name + ".weight"]
        if weight.dtype == ml_dtypes.bfloat16:
            return quantise_fp8(weight.astype(np.float32))
        return from_fp8(weight, self.tensors[f"{name}.{self.words['scale']}"])
