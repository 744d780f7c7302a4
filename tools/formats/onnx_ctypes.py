"""onnx_ctypes.py — ONNX models in libtrunnion through ctypes: arrays of numpy in, arrays out."""

import ctypes
import pathlib

import numpy as np

POINTER = ctypes.c_void_p
NUMBERS = {"float32": 0, "float64": 1, "int32": 2, "int64": 3, "uint32": 4, "uint64": 5, "bool": 6, "float16": 7,
           "int8": 9, "uint8": 10, "int16": 11, "uint16": 12}  # tn_dtype
NAMES = {number: name for name, number in NUMBERS.items()}


class Value:
    """An input: a tensor with a copy of an array's numbers."""

    def __init__(self, dll, array):
        array = np.asarray(array, order="C")
        shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        tensor = POINTER(dll.tn_from_data(array.ctypes.data_as(POINTER), shape, array.ndim, NUMBERS[array.dtype.name]))
        self.dll, self.handle = dll, POINTER(dll.tn_onnx_value_tensor(tensor))
        dll.tn_free(tensor)

    def __del__(self):
        self.dll.tn_onnx_value_free(self.handle)


class Here:
    """The library; build: the folder of libtrunnion.so."""

    def __init__(self, build, threads=1):
        self.dll = dll = ctypes.CDLL(str(pathlib.Path(build) / "libtrunnion.so"))
        for name in ("tn_from_data", "tn_onnx_value_tensor", "tn_onnx_value_get"):
            getattr(dll, name).restype = POINTER
        for name in ("tn_free", "tn_rank", "tn_shape", "tn_dtype_of", "tn_onnx_value_free", "tn_onnx_value_get",
                     "tn_onnx_value_tensor", "tn_onnx_value_kind", "tn_onnx_close", "tn_onnx_output_count"):
            getattr(dll, name).argtypes = [POINTER]
        dll.tn_error.restype = ctypes.c_char_p
        dll.tn_shape.restype = ctypes.POINTER(ctypes.c_int64)
        self.check(dll.tn_set_num_threads(threads))

    def check(self, status):
        if status != 0:
            raise RuntimeError((self.dll.tn_error() or b"").decode(errors="replace"))

    def value(self, array):
        return Value(self.dll, array)

    def open(self, model):
        """A ModelProto."""
        return Model(self, model.SerializeToString())


class Model:
    def __init__(self, here, text):
        self.here, self.dll, self.handle = here, here.dll, POINTER()
        here.check(self.dll.tn_onnx_open_memory(text, ctypes.c_size_t(len(text)), None, ctypes.byref(self.handle)))
        self.outputs = self.dll.tn_onnx_output_count(self.handle)

    def run(self, values):
        """The outputs as arrays, None for what is no tensor."""
        given = (POINTER * max(len(values), 1))(*[v.handle for v in values])
        out = (POINTER * self.outputs)()
        self.here.check(self.dll.tn_onnx_run(self.handle, given, out))
        try:
            return [self.array(o) for o in out]
        finally:
            for o in out:
                self.dll.tn_onnx_value_free(o)

    def array(self, value):
        if value is None or self.dll.tn_onnx_value_kind(value) != 0:
            return None
        tensor = POINTER(self.dll.tn_onnx_value_get(value))
        shape = self.dll.tn_shape(tensor)
        out = np.empty([shape[d] for d in range(self.dll.tn_rank(tensor))], NAMES[self.dll.tn_dtype_of(tensor)])
        self.here.check(self.dll.tn_read(tensor, out.ctypes.data_as(POINTER), ctypes.c_size_t(out.nbytes)))
        return out

    def close(self):
        self.dll.tn_onnx_close(self.handle)
