"""Reads and writes safetensors files with the standard library alone."""

import json
import struct


def read(path):
    """Tensor name -> (dtype, shape, bytes)."""
    with open(path, "rb") as file:
        data = file.read()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    base = 8 + header_bytes
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[base + begin : base + end])
    return tensors


def write(path, tensors):
    """The inverse of read."""
    header = {}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def int64s(values):
    return struct.pack(f"<{len(values)}q", *values)


def int32s(values):
    return struct.pack(f"<{len(values)}i", *values)


def bf16s(values):
    """Floats cut to BF16: exact for the short numbers that the tests use."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)
