"""One MoE layer in numpy, from the safetensors files alone: none of the project's code.

FP64 sums; rounding points as the operator's: the second GEMM's input to E4M3 with one FP32 scale
per 128 columns, every slot's row and the shared row to BF16, the sum of the slots in FP32 and slot
order, then the shared row, then one rounding to BF16.
"""

import ml_dtypes
import numpy as np

import checkpoint_oracle

CHUNK = 128
MAX_REL_L2 = 1e-2
MIN_COSINE = 0.99995


class Layer:
    """Config and weights of one layer of a checkpoint folder."""

    def __init__(self, folder, up_first=False):
        self.checkpoint = checkpoint_oracle.Checkpoint(folder, up_first=up_first)
        config = self.checkpoint.config
        is_gpt_oss = self.checkpoint.is_gpt_oss
        self.hidden = config["hidden_size"]
        self.clamp = config.get("swiglu_limit", np.inf)
        self.alpha = config.get("swiglu_alpha", 1.702 if is_gpt_oss else 1.0)
        self.beta = config.get("swiglu_beta", 1.0 if is_gpt_oss else 0.0)

    def activation(self, gate, up):
        gate = np.minimum(gate, self.clamp)
        up = np.clip(up, -self.clamp, self.clamp)
        return gate / (1.0 + np.exp(-self.alpha * gate)) * (up + self.beta)

    def run_expert(self, expert, x, weight):
        """A routed expert. x (n, hidden) FP64, weight (n) float32 -> (n, hidden) bfloat16."""
        read, bias = self.checkpoint.routed, self.checkpoint.bias
        gate = x @ read(expert, "gate").T + bias(expert, "gate")
        up = x @ read(expert, "up").T + bias(expert, "up")
        gated = self.activation(gate, up) * weight.astype(np.float64)[:, None]
        sums = requantise(gated) @ read(expert, "down").T
        down_bias = weight[:, None] * np.float32(bias(expert, "down"))
        return (sums.astype(np.float32) + down_bias).astype(ml_dtypes.bfloat16)

    def run_shared(self, x):
        gate = x @ self.checkpoint.shared("gate").T
        up = x @ self.checkpoint.shared("up").T
        sums = requantise(self.activation(gate, up)) @ self.checkpoint.shared("down").T
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
        if self.checkpoint.has_shared and tokens > 0:
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
