"""blas_works.py — the matrix products of `trunnion bench` in OpenBLAS or oneDNN, for bench/compare.py.

    blas_works.py serve openblas|onednn THREADS     obeys lines of JSON on standard input, answers each with one

The libraries are those of the PyPI packages scipy-openblas32 and onednn-cpu-gomp, called through ctypes. OpenBLAS is told
to use its AVX-512 kernels where it does not know a processor that has them ("tuned"). A call from Python costs about a
microsecond more than one from C, less than 1 % of the smallest of these works.
"""

import ctypes
import json
import os
import pathlib
import sys
import sysconfig

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from timing import sample  # noqa: E402

TOLERANCE = 2e-5  # of the largest value
ROW_MAJOR, AS_IT_IS = 101, 111
SIZE, FLOAT, POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_void_p


def processor_has_avx512():
    with open("/proc/cpuinfo") as file:
        return "avx512f" in file.read()


class OpenBlas:
    name = "OpenBLAS"

    def __init__(self, threads):
        folder = pathlib.Path(sysconfig.get_path("purelib")) / "scipy_openblas32" / "lib"
        self.c = ctypes.CDLL(str(folder / "libscipy_openblas.so"))
        self.c.scipy_openblas_get_corename.restype = ctypes.c_char_p
        self.c.scipy_openblas_get_config.restype = ctypes.c_char_p
        self.c.scipy_openblas_set_num_threads(threads)
        self.core = self.c.scipy_openblas_get_corename().decode()
        self.version = self.c.scipy_openblas_get_config().decode().split()[1] + " " + self.core
        gemm, gemv = self.c.scipy_cblas_sgemm, self.c.scipy_cblas_sgemv
        gemm.argtypes = [SIZE] * 6 + [FLOAT, POINTER, SIZE, POINTER, SIZE, FLOAT, POINTER, SIZE]
        gemv.argtypes = [SIZE] * 4 + [FLOAT, POINTER, SIZE, POINTER, SIZE, FLOAT, POINTER, SIZE]

    def product(self, a, b, c):
        (m, k), n = a.shape, b.shape[1]
        if n == 1:
            return lambda: self.c.scipy_cblas_sgemv(ROW_MAJOR, AS_IT_IS, m, k, 1, a.ctypes.data, k, b.ctypes.data, 1, 0,
                                                    c.ctypes.data, 1)
        at = a.ctypes.data, b.ctypes.data, c.ctypes.data
        return lambda: self.c.scipy_cblas_sgemm(ROW_MAJOR, AS_IT_IS, AS_IT_IS, m, n, k, 1, at[0], k, at[1], n, 0, at[2], n)


class OneDnn:
    name = "oneDNN"

    def __init__(self, threads):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.c = ctypes.CDLL(str(pathlib.Path(sys.prefix) / "lib" / "libdnnl.so.3"))
        self.c.dnnl_version.restype = ctypes.POINTER(ctypes.c_int * 3)
        self.version = ".".join(map(str, self.c.dnnl_version().contents))
        size = ctypes.c_int64
        self.c.dnnl_sgemm.argtypes = [ctypes.c_char] * 2 + [size] * 3 + [FLOAT, POINTER, size, POINTER, size, FLOAT,
                                                                         POINTER, size]

    def product(self, a, b, c):
        (m, k), n = a.shape, b.shape[1]
        at = a.ctypes.data, b.ctypes.data, c.ctypes.data
        return lambda: self.c.dnnl_sgemm(b"N", b"N", m, n, k, 1, at[0], k, at[1], n, 0, at[2], n)


def make(library, threads):
    if library == "onednn":
        return OneDnn(threads)
    it = OpenBlas(threads)
    tuned = it.core in ("SkylakeX", "Cooperlake", "Sapphirerapids", "SapphireRapids", "Zen5")
    if tuned or "OPENBLAS_CORETYPE" in os.environ or not processor_has_avx512():
        return it
    os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"  # is read when the library is loaded: begin again
    os.execv(sys.executable, [sys.executable, *sys.argv])


def read(path):
    """{name: array} of a safetensors file whose tensors are all f32."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(data, numpy.float32, offset=8 + length + t["data_offsets"][0],
                                   count=numpy.prod(t["shape"], dtype=int)).reshape(t["shape"]).copy()
            for name, t in header.items()}


def main():
    library = make(sys.argv[2], int(sys.argv[3]))
    print("ready", library.version, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        path = f"{asked['folder']}/{asked['work']}"
        start = read(path + ".start.safetensors")
        a, b = start["input.0"], start["input.1"]
        c = numpy.zeros((a.shape[0], b.shape[1]), numpy.float32)
        run = library.product(a, b, c)
        if asked["do"] == "check":
            run()
            want = read(path + ".result.safetensors")["result.0"]
            error, bound = abs(c - want).max(), TOLERANCE * abs(want).max()
            answer = {"wrong": [] if error <= bound else [f"result: {error:.2g}, where {bound:.2g} is allowed"]}
        else:
            answer = sample(run, asked["seconds"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
