"""PyPI's safetensors opens our files, and we open its files, bit for bit."""

import os
import subprocess
import sys
import tempfile

try:
    import safetensors
    import safetensors.torch
    import torch
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

TOOL = os.environ["FLASHSTEP_FILE_TOOL"]
DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32, "Short": torch.int16,
    "Char": torch.int8, "UInt64": torch.uint64, "UInt32": torch.uint32, "UInt16": torch.uint16,
    "Byte": torch.uint8, "Bool": torch.bool, "ComplexFloat": torch.complex64,
    "Float8_e4m3fn": torch.float8_e4m3fn, "Float8_e5m2": torch.float8_e5m2,
    "Float8_e4m3fnuz": torch.float8_e4m3fnuz, "Float8_e5m2fnuz": torch.float8_e5m2fnuz,
}


def pattern(dtype, shape):
    """The values of file_tool.cc's pattern()."""
    size = torch.empty(shape, dtype=dtype).nbytes
    data = [i % 2 if dtype == torch.bool else (i * 31 + 7) % 256 for i in range(size)]
    flat = torch.tensor(data, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def bytes_of(tensor):
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist())


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)


def test_theirs_reads_ours(directory):
    path = os.path.join(directory, "ours.safetensors")
    subprocess.run([TOOL, "write-tensors", path], check=True)
    tensors = safetensors.torch.load_file(path)
    expected = {name: pattern(dtype, (3, 5)) for name, dtype in DTYPES.items()}
    expected["scalar"] = pattern(torch.float32, ())
    expected["empty"] = pattern(torch.float32, (0, 4))
    expected["transposed"] = pattern(torch.float32, (3, 5)).t()
    expected['name with "quotes", a \n and é'] = pattern(torch.uint8, (1,))
    assert set(tensors) == set(expected), set(tensors) ^ set(expected)
    for name, tensor in expected.items():
        assert same(tensors[name], tensor), name
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "é": "\t"}, file.metadata()


def test_ours_reads_theirs(directory):
    path = os.path.join(directory, "theirs.safetensors")
    tensors = {name: pattern(dtype, (3, 5)) for name, dtype in DTYPES.items()}
    tensors |= {"scalar": pattern(torch.float32, ()), "empty": torch.zeros(0, 4)}
    safetensors.torch.save_file(tensors, path, metadata={"key": "value"})
    result = subprocess.run([TOOL, "read-tensors", path], check=True, capture_output=True, text=True)
    seen = set()
    for line in result.stdout.splitlines():
        name, rest = line.split(" ", 1)
        shape, data = rest[rest.index("[") :].rsplit(" ", 1)
        assert shape == str(list(tensors[name].shape)), line
        assert bytes.fromhex(data) == bytes_of(tensors[name]), line
        seen.add(name)
    assert seen == set(tensors), seen ^ set(tensors)


def test_both_refuse_alike(directory):
    """Whatever byte of a header changes, we accept no file that they refuse."""
    path = os.path.join(directory, "small.safetensors")
    safetensors.torch.save_file({"a": torch.ones(2), "b": torch.ones(3, dtype=torch.int64)}, path)
    with open(path, "rb") as file:
        whole = file.read()
    refused = 0
    # One start of the program a file, so only a sample: every 5th byte, one bit each.
    for i in range(0, len(whole) - 32, 5):
        changed = bytearray(whole)
        changed[i] ^= 1 << (i % 7)
        with open(path, "wb") as file:
            file.write(changed)
        try:
            safetensors.torch.load_file(path)
        except Exception:  # their errors have several types
            refused += 1
            result = subprocess.run([TOOL, "read-tensors", path], capture_output=True, text=True)
            assert result.returncode == 2, (i, result)
            assert result.stderr.count("\n") == 1 and path in result.stderr, result.stderr
    assert refused > 5, refused


with tempfile.TemporaryDirectory() as directory:
    test_theirs_reads_ours(directory)
    test_ours_reads_theirs(directory)
    test_both_refuse_alike(directory)
print("safetensors", safetensors.__version__, "agrees")
