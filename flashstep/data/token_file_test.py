"""Token files between flashstep and numpy: each reads what the other wrote."""
import os
import re
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("SKIPPED: the Python package numpy is not installed")
    sys.exit(77)

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
WRITER = os.environ["TOKEN_FILE_TEST"]


def inspect(path):
    result = subprocess.run([PROGRAM, "data", "inspect", path], capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


def field(text, name):
    return re.search(rf"^{name} +(.*)$", text, re.M).group(1).replace(",", "")


def test_numpy_reads_ours(directory):
    subprocess.run([WRITER, "--gtest_filter=TokenFileForNumpy.*"], check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "TOKEN_FILE_DIRECTORY": directory})
    for vocab_size, dtype in [(65536, np.uint16), (100000, np.uint32)]:
        ids = np.load(os.path.join(directory, f"ours_{vocab_size}.npy"), mmap_mode="r")
        assert ids.dtype == dtype and ids.shape == (1000,), (ids.dtype, ids.shape)
        assert (ids == (np.arange(1000) * 7919 % 2**32 % vocab_size)).all()


def test_we_read_numpys(directory):
    path = os.path.join(directory, "theirs.npy")
    rng = np.random.default_rng(1)
    for dtype, name in [(np.uint16, "uint16"), (np.uint32, "uint32")]:
        for size in [1, 100003]:
            ids = rng.integers(3, 60000, size).astype(dtype)
            for version in [(1, 0), (2, 0)]:
                with open(path, "wb") as file:
                    np.lib.format.write_array(file, ids, version=version)
                code, out, err = inspect(path)
                assert code == 0, err
                assert field(out, "type") == name, out
                assert int(field(out, "tokens")) == size, out
                assert int(field(out, "smallest id")) == ids.min(), out
                assert int(field(out, "largest id")) == ids.max(), out


def test_we_refuse_other_arrays(directory):
    path = os.path.join(directory, "other.npy")
    for array, word in [(np.arange(5), "int64"), (np.zeros((2, 3), np.uint16), "2 dimensions"),
                        (np.arange(5, dtype=">u2"), "big-endian"), (np.ones(3), "float64"),
                        (np.array(7, np.uint16), "0 dimensions"),
                        (np.zeros(2, [("a", "<u2")]), "structured")]:
        np.save(path, array)
        code, out, err = inspect(path)
        assert code == 2 and word in err and err.count("\n") == 1, (code, out, err)


with tempfile.TemporaryDirectory() as directory:
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(directory)
            print("passed", name)
