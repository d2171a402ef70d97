"""PyPI's safetensors opens our files, and we open its files, bit for bit: as NumPy arrays, and, where torch is
installed, as torch's tensors, which have dtypes that NumPy lacks."""

import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)
try:
    import safetensors.torch
    import torch
except ImportError:
    torch = None

TOOL = os.environ["FLASHSTEP_FILE_TOOL"]
NOT_NUMPY = {"BFloat16", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"}


def pattern_bytes(size, is_bool):
    """The bytes of file_tool.cc's pattern()."""
    return bytes(i % 2 if is_bool else (i * 31 + 7) % 256 for i in range(size))


class Numpy:
    name, framework, byte, float = "NumPy", "np", numpy.uint8, numpy.float32
    dtypes = {
        "Double": numpy.float64, "Float": numpy.float32, "Half": numpy.float16, "Long": numpy.int64, "Int": numpy.int32,
        "Short": numpy.int16, "Char": numpy.int8, "UInt64": numpy.uint64, "UInt32": numpy.uint32,
        "UInt16": numpy.uint16, "Byte": numpy.uint8, "Bool": numpy.bool_, "ComplexFloat": numpy.complex64,
    }
    save = staticmethod(safetensors.numpy.save_file)

    @staticmethod
    def pattern(dtype, shape):
        data = pattern_bytes(numpy.empty(shape, dtype).nbytes, dtype == numpy.bool_)
        return numpy.frombuffer(data, dtype).reshape(shape)

    @staticmethod
    def bytes_of(array):
        return array.tobytes()


class Torch:
    name, framework = "torch", "pt"
    if torch is not None:
        byte, float = torch.uint8, torch.float32
        dtypes = {
            "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
            "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "UInt64": torch.uint64,
            "UInt32": torch.uint32, "UInt16": torch.uint16, "Byte": torch.uint8, "Bool": torch.bool,
            "ComplexFloat": torch.complex64, "Float8_e4m3fn": torch.float8_e4m3fn, "Float8_e5m2": torch.float8_e5m2,
            "Float8_e4m3fnuz": torch.float8_e4m3fnuz, "Float8_e5m2fnuz": torch.float8_e5m2fnuz,
        }
        save = staticmethod(safetensors.torch.save_file)

    @staticmethod
    def pattern(dtype, shape):
        size = torch.empty(shape, dtype=dtype).nbytes
        flat = torch.tensor(list(pattern_bytes(size, dtype == torch.bool)), dtype=torch.uint8)
        return flat.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)

    @staticmethod
    def bytes_of(tensor):
        return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def test_theirs_reads_ours(directory, peer):
    path = os.path.join(directory, "ours.safetensors")
    subprocess.run([TOOL, "write-tensors", path], check=True)
    expected = {name: peer.pattern(dtype, (3, 5)) for name, dtype in peer.dtypes.items()}
    expected["scalar"] = peer.pattern(peer.float, ())
    expected["empty"] = peer.pattern(peer.float, (0, 4))
    expected["transposed"] = peer.pattern(peer.float, (3, 5)).T
    expected['name with "quotes", a \n and é'] = peer.pattern(peer.byte, (1,))
    with safetensors.safe_open(path, peer.framework) as file:
        unknown = set(file.keys()) ^ set(expected)
        assert unknown == (NOT_NUMPY if peer is Numpy else set()), unknown
        for name, tensor in expected.items():
            read = file.get_tensor(name)
            assert read.dtype == tensor.dtype and read.shape == tensor.shape, name
            assert peer.bytes_of(read) == peer.bytes_of(tensor), name
        assert file.metadata() == {"format": "pt", "é": "\t"}, file.metadata()


def test_ours_reads_theirs(directory, peer):
    path = os.path.join(directory, "theirs.safetensors")
    tensors = {name: peer.pattern(dtype, (3, 5)) for name, dtype in peer.dtypes.items()}
    tensors |= {"scalar": peer.pattern(peer.float, ()), "empty": peer.pattern(peer.float, (0, 4))}
    peer.save(tensors, path, metadata={"key": "value"})
    result = subprocess.run([TOOL, "read-tensors", path], check=True, capture_output=True, text=True)
    seen = set()
    for line in result.stdout.splitlines():
        name, rest = line.split(" ", 1)
        shape, data = rest[rest.index("[") :].rsplit(" ", 1)
        assert shape == str(list(tensors[name].shape)), line
        assert bytes.fromhex(data) == peer.bytes_of(tensors[name]), line
        seen.add(name)
    assert seen == set(tensors), seen ^ set(tensors)


def test_both_refuse_alike(directory):
    """Whatever byte of a header changes, we accept no file that they refuse."""
    path = os.path.join(directory, "small.safetensors")
    safetensors.numpy.save_file({"a": numpy.ones(2, numpy.float32), "b": numpy.ones(3, numpy.int64)}, path)
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
            safetensors.numpy.load_file(path)
        except KeyError:  # a dtype that the format knows and NumPy does not
            continue
        except Exception:  # their errors have several types
            refused += 1
            result = subprocess.run([TOOL, "read-tensors", path], capture_output=True, text=True)
            assert result.returncode == 2, (i, result)
            assert result.stderr.count("\n") == 1 and path in result.stderr, result.stderr
    assert refused > 5, refused


peers = [Numpy] if torch is None else [Numpy, Torch]
with tempfile.TemporaryDirectory() as directory:
    for peer in peers:
        test_theirs_reads_ours(directory, peer)
        test_ours_reads_theirs(directory, peer)
    test_both_refuse_alike(directory)
print("safetensors", safetensors.__version__, "agrees, with", " and ".join(peer.name for peer in peers))
