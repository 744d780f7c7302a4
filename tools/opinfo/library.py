"""library.py — libtrunnion through ctypes, for the suite opinfo: every function of ops.def by its name, on tensors of PyTorch.

The prototypes and the options structs are made of the op table as tools/gen/gen_ops.py reads it, those of functions.h are
read from the header, so nothing here repeats a signature. A failed call raises Refused with the library's message.
"""

import ctypes
import pathlib
import re
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from gen import gen_ops  # noqa: E402

MAX_RANK = 8
DTYPES = {torch.float32: 0, torch.float64: 1, torch.int32: 2, torch.int64: 3, torch.bool: 6, torch.float16: 7,
          torch.bfloat16: 8, torch.int8: 9, torch.uint8: 10, torch.int16: 11}
TORCH_DTYPES = {number: dtype for dtype, number in DTYPES.items()}
HANDLE = ctypes.c_void_p
# A struct of options that was started from its defaults carries this mark (status.h).
OPTIONS_MARK = int(re.search(r"TN_OPTIONS_MARK \(\(size_t\)(0x[0-9A-F]+)\)",
                             (ROOT / "include/trunnion/status.h").read_text()).group(1), 16)
PLAIN = {"double": ctypes.c_double, "bool": ctypes.c_bool, "int64_t": ctypes.c_int64}
PROTOTYPE = re.compile(r"^TN_API (?P<result>tn_tensor \*|tn_status )tn_(?P<name>\w+)\((?P<arguments>[^;]*)\);", re.M)
ENUMERATION = re.compile(r"typedef enum tn_\w+ \{(.*?)\} (tn_\w+);", re.S)
# Functions that are written by hand, with their results: name → number of tensors they write.
FACTORIZATIONS = {"linalg_lu": 3, "linalg_qr": 2, "linalg_eigh": 2, "linalg_eig": 2, "linalg_svd": 3, "linalg_slogdet": 2}


class Refused(Exception):
    """The library refused a call; the text is its message."""


class NotOffered(Exception):
    """The sample asks for something that the library does not have; the text says what."""


class Tensor:
    """One handle of the library, freed with the object."""

    def __init__(self, library, handle):
        self.library, self.handle = library, handle
        if library.dll.tn_status_of(handle) != 0:
            raise Refused(library.error())

    def __del__(self):
        self.library.dll.tn_free(self.handle)

    @property
    def shape(self):
        rank = self.library.dll.tn_rank(self.handle)
        return [self.library.dll.tn_shape(self.handle)[d] for d in range(rank)]

    @property
    def ndim(self):
        return self.library.dll.tn_rank(self.handle)

    @property
    def dtype(self):
        return TORCH_DTYPES[self.library.dll.tn_dtype_of(self.handle)]

    def numel(self):
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def read(self):
        out = torch.empty(self.shape, dtype=self.dtype)
        size = out.numel() * out.element_size()
        if self.library.dll.tn_read(self.handle, ctypes.c_void_p(out.data_ptr()), size) != 0:
            raise Refused(self.library.error())
        return out


def _c_int64s(values):
    return (ctypes.c_int64 * max(len(values), 1))(*values)


class Library:
    """library.NAME(…) calls tn_NAME; lists, numbers and dtypes are given as Python has them, options as keywords."""

    def __init__(self, build):
        self.dll = ctypes.CDLL(str(pathlib.Path(build) / "libtrunnion.so"))
        self.ops = {op.name: op for op in gen_ops.read_table()}
        self.choices = gen_ops.enumerations(self.ops.values())
        header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/trunnion/functions.h").read_text(), flags=re.S)
        self.functions = {m["name"]: [" ".join(a.split()) for a in m["arguments"].split(",")]
                          for m in PROTOTYPE.finditer(header)}
        self.constants = {n: i for m in ENUMERATION.finditer(header) for i, n in enumerate(re.findall(r"TN_\w+", m[1]))}
        self.structs = {name: self._struct(op) for name, op in self.ops.items() if op.options}
        for name, result, arguments in (
                ("tn_error", ctypes.c_char_p, []), ("tn_rank", ctypes.c_int, [HANDLE]),
                ("tn_shape", ctypes.POINTER(ctypes.c_int64), [HANDLE]), ("tn_dtype_of", ctypes.c_int, [HANDLE]),
                ("tn_status_of", ctypes.c_int, [HANDLE]), ("tn_free", None, [HANDLE]),
                ("tn_read", ctypes.c_int, [HANDLE, ctypes.c_void_p, ctypes.c_size_t]),
                ("tn_from_data", HANDLE, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]),
                ("tn_scalar", HANDLE, [ctypes.c_double]), ("tn_scalar_int", HANDLE, [ctypes.c_int64]),
                ("tn_retain", HANDLE, [HANDLE]), ("tn_set_requires_grad", ctypes.c_int, [HANDLE, ctypes.c_bool])):
            function = getattr(self.dll, name)
            function.restype, function.argtypes = result, arguments

    def error(self):
        return (self.dll.tn_error() or b"").decode()

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def tensor(self, value):
        """A torch tensor's elements as a tensor of ours."""
        if value.dtype not in DTYPES or value.layout != torch.strided:
            raise NotOffered(f"{value.dtype} {value.layout}")
        if value.ndim > MAX_RANK:
            raise NotOffered(f"rank {value.ndim}")
        plain = value.detach().contiguous()
        handle = self.dll.tn_from_data(ctypes.c_void_p(plain.data_ptr()), _c_int64s(list(plain.shape)), plain.ndim,
                                       DTYPES[plain.dtype])
        return Tensor(self, handle)

    def number(self, value):
        """A Python number as PyTorch takes it beside a tensor: an int is weaker than a float."""
        if isinstance(value, complex):
            raise NotOffered("complex numbers")
        if isinstance(value, (bool, int)):
            return Tensor(self, self.dll.tn_scalar_int(int(value)))
        return Tensor(self, self.dll.tn_scalar(float(value)))

    def gradients(self, outputs, seeds, inputs):
        """d Σ output·seed / d input for each input."""
        out = (HANDLE * len(inputs))()
        many = [(HANDLE * len(t))(*[x.handle for x in t]) for t in (outputs, seeds, inputs)]
        status = self.dll.tn_gradients(many[0], len(outputs), many[1], many[2], len(inputs), ctypes.c_bool(False), out)
        if status != 0:
            raise Refused(self.error())
        return [Tensor(self, handle) for handle in out]

    # ---- operations --------------------------------------------------------------------------------------------------

    def _struct(self, op):
        fields = [("struct_size", ctypes.c_size_t)]
        for p in op.options:
            kind = PLAIN.get(p.value_type(), ctypes.c_int)
            fields.append((p.name, kind * int(p.fixed) if p.is_array else kind))
        return type(f"tn_{op.name}_options", (ctypes.Structure,), {"_fields_": fields})

    def _value(self, p, value):
        if p.choices:
            return p.choices.index(value) if isinstance(value, str) else value
        if p.value_type() == "tn_dtype":
            if value not in DTYPES:
                raise NotOffered(str(value))
            return DTYPES[value]
        if p.is_float:
            return float(value)
        return bool(value) if p.type == "bool" else int(value)

    def _options(self, op, given):
        struct = self.structs[op.name]()
        last = getattr(type(struct), op.options[-1].name)
        struct.struct_size = OPTIONS_MARK | (last.offset + last.size)
        for p in op.options:
            value = given.pop(p.name, None)
            if value is None:
                value = {"true": True, "false": False}.get(p.default, p.default if p.choices else None)
            if value is None:
                number = "-inf" if p.default == "auto" else p.default
                value = float(number) if p.is_float else int(number)
            if p.is_array:
                items = value if isinstance(value, (list, tuple)) else [value]
                items = list(items) * (int(p.fixed) if len(items) == 1 else 1)
                value = (ctypes.c_int64 * int(p.fixed))(*items)
            else:
                value = self._value(p, value)
            setattr(struct, p.name, value)
        if given:
            raise TypeError(f"{op.name}: no option {sorted(given)}")
        return struct

    def _handle(self, value, keep):
        if value is None:
            return None
        if not isinstance(value, Tensor):
            value = self.number(value)
        keep.append(value)
        return value.handle

    def _arguments(self, op, values, options):
        """(C arguments, what must live until the call has returned)."""
        out, keep = [], []
        required = [p for p in op.parameters if not p.optional_part]
        if len(values) != len(required):
            raise TypeError(f"{op.name}: {len(values)} arguments, not {len(required)}")
        for p, value in zip(required, values):
            if p.type == "Tensor[]":
                handles = [self._handle(v, keep) for v in value]
                out += [(HANDLE * max(len(handles), 1))(*handles), ctypes.c_int(len(handles))]
            elif p.is_tensor:
                out.append(HANDLE(self._handle(value, keep)))
            elif p.is_list:
                out += [_c_int64s(value), ctypes.c_int(len(value))]
            elif p.is_array:
                items = list(value) if isinstance(value, (list, tuple)) else [value]
                out.append(_c_int64s(items * (int(p.fixed) if len(items) == 1 else 1)))
            else:
                out.append(PLAIN.get(p.value_type(), ctypes.c_int)(self._value(p, value)))
        if op.options:
            struct = self._options(op, dict(options))
            keep.append(struct)
            out.append(ctypes.byref(struct))
        elif options:
            raise TypeError(f"{op.name}: it has no options")
        return out, keep

    def _call(self, op, symbol, values, options):
        arguments, keep = self._arguments(op, values, options)
        function = getattr(self.dll, symbol)
        if op.returns_list:
            room = (HANDLE * 64)()
            function.restype = ctypes.c_int
            count = function(*arguments, room)
            return [Tensor(self, handle) for handle in list(room)[:count]]
        function.restype = HANDLE
        result = function(*arguments)
        del keep
        if symbol.endswith("_"):  # the first argument's own handle
            self.dll.tn_retain(result)
        return Tensor(self, result)

    def _factorize(self, name, x, *flags):
        count = FACTORIZATIONS[name]
        out = [HANDLE() for _ in range(count)]
        getattr(self.dll, f"tn_{name}")(HANDLE(x.handle), *[ctypes.c_bool(f) for f in flags],
                                        *[ctypes.byref(o) for o in out])
        return [Tensor(self, o.value) for o in out]

    def _function(self, name, values, results):
        """A function of functions.h, its values in the header's order, None for NULL. An int that counts a list is not
        passed. The first of its results, or with results=n a list with the first n of those behind pointers."""
        values, arguments, keep, behind = list(values), [], [], []
        declared = self.functions[name]
        for i, a in enumerate(declared):
            follows = declared[i + 1] if i + 1 < len(declared) else ""
            if a.startswith("tn_tensor **"):
                room = (HANDLE * 8)() if len(behind) < results else None
                behind.append(room)
                arguments.append(room)
                continue
            if a.startswith("int ") and (declared[i - 1].startswith(("tn_tensor *const", "const int64_t *"))):
                continue
            value = values.pop(0)
            if a.startswith("const tn_tensor *"):
                arguments.append(HANDLE(self._handle(value, keep)))
            elif a.startswith("tn_tensor *const *"):
                handles = [self._handle(v, keep) for v in value]
                arguments += [(HANDLE * max(len(handles), 1))(*handles), ctypes.c_int(len(handles))]
            elif a.startswith("const int64_t "):
                arguments.append(None if value is None else _c_int64s(list(value)))
                if follows.startswith("int "):
                    arguments.append(ctypes.c_int(len(value)))
            elif a.startswith("const double *"):
                arguments.append(None if value is None else (ctypes.c_double * len(value))(*value))
            elif a.startswith("const char *"):
                arguments.append(ctypes.c_char_p(value.encode()))
            elif a.startswith(("int64_t ", "double ", "bool ")):
                kind = PLAIN[a.split()[0]]
                arguments.append(kind(float(value) if kind is ctypes.c_double else int(value)))
            elif a.startswith("int "):
                arguments.append(ctypes.c_int(value))
            else:
                arguments.append(ctypes.c_int(self.constants.get(value, self._reduction(value))))
        if values:
            raise TypeError(f"{name}: {len(values)} arguments too many")
        return arguments, keep, behind

    @staticmethod
    def _reduction(value):
        names = (("mean", "sum", "none"), ("sum", "prod", "amax", "amin"))
        return next((n.index(value) for n in names if value in n), value)

    def _call_function(self, name, values, results=0):
        function = getattr(self.dll, f"tn_{name}")
        arguments, keep, behind = self._function(name, values, results)
        function.restype = HANDLE
        out = function(*arguments)
        del keep
        if name == "meshgrid":
            return [Tensor(self, handle) for handle in behind[0][:len(values[0])]]
        first = Tensor(self, out)
        return [first, *[Tensor(self, room[0]) for room in behind if room is not None]] if results else first

    def __getattr__(self, name):
        if name in self.functions and (name not in self.ops or self.ops[name].internal):
            return lambda *values, results=0: self._call_function(name, values, results)
        if name in FACTORIZATIONS:
            return lambda x, *flags: self._factorize(name, x, *flags)
        op = self.ops.get(name) or self.ops.get(name.removesuffix("_"))
        if op is None or op.internal:
            raise AttributeError(name)
        return lambda *values, **options: self._call(op, f"tn_{name}", values, options)
