"""gpu_headers.py — what src/drivers/cuda.h declares of CUDA, NVRTC, HIP and hiprtc, and files of src/vendor of the vendors'
libraries, against the vendors' headers.

Building needs no SDK, so the driver declares its calls itself. Where a header is (the toolkit's folder, AMD's package, or
the folders of CUDA_INCLUDE and HIP_INCLUDE), each call has to be in it with parameters of the same kinds: pointers and
handles, 32-bit integers, sizes; CUDA's addresses are integers as wide as the pointers that they are here. Numbers of
errors and attributes have to be those of their names.
"""

import glob
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OURS = (ROOT / "src" / "drivers" / "cuda.h").read_text()
ERRORS = (ROOT / "src" / "drivers" / "cuda_probe.c").read_text()

SMALL = {"int", "unsigned", "unsigned int", "unsigned char", "CUdevice", "hipDevice_t", "CUdevice_attribute",
         "hipDeviceAttribute_t", "CUfunction_attribute", "hipFunction_attribute", "float", "uint32_t", "cudaDataType", "cudaDataType_t",
         "cublasComputeType_t", "cublasLtMatmulDescAttributes_t", "cublasLtMatrixLayoutAttribute_t",
         "cublasLtMatmulPreferenceAttributes_t", "rocblas_operation", "rocblas_int", "rocblas_datatype",
         "rocblas_gemm_algo", "rocblas_atomics_mode", "int32_t", "cudnnTensorFormat_t", "cudnnDataType_t",
         "cudnnConvolutionMode_t", "cudnnMathType_t", "cudnnConvolutionFwdAlgo_t", "cudnnConvolutionBwdDataAlgo_t",
         "cudnnConvolutionBwdFilterAlgo_t", "ncclDataType_t"}
WIDE = {"size_t", "unsigned long", "unsigned long long", "cuuint64_t", "int64_t", "uint64_t", "rocblas_stride"}
# Names behind which pointers are, or integers as wide.
HANDLES = {"CUdeviceptr", "hipDeviceptr_t", "CUcontext", "CUstream", "hipStream_t", "CUevent", "hipEvent_t", "CUmodule",
           "hipModule_t", "CUgraph", "CUgraphExec", "CUgraphNode", "hipGraph_t", "hipGraphExec_t", "hipGraphNode_t",
           "CUfunction", "hipFunction_t", "nvrtcProgram", "hiprtcProgram", "cudaStream_t", "cublasLtHandle_t",
           "cublasLtMatmulDesc_t", "cublasLtMatrixLayout_t", "cublasLtMatmulPreference_t",
           "rocblas_handle", "cudnnHandle_t", "cudnnTensorDescriptor_t", "cudnnFilterDescriptor_t",
           "cudnnConvolutionDescriptor_t", "ncclComm_t", "ncclUniqueId", "tn_nccl_id"}

# Our name of a number: the vendors'.
NUMBERS = {
    "max_items": ("CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK", "hipDeviceAttributeMaxThreadsPerBlock"),
    "max_groups_x": ("CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X", "hipDeviceAttributeMaxGridDimX"),
    "shared_memory": ("CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
                      "hipDeviceAttributeMaxSharedMemoryPerBlock"),
    "warp": ("CU_DEVICE_ATTRIBUTE_WARP_SIZE", "hipDeviceAttributeWarpSize"),
    "processors": ("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", "hipDeviceAttributeMultiprocessorCount"),
    "integrated": ("CU_DEVICE_ATTRIBUTE_INTEGRATED", "hipDeviceAttributeIntegrated"),
    "CUDA_MAJOR": ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", None),
    "CUDA_MINOR": ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", None),
    "OUT_OF_MEMORY": ("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"),
    "NOT_READY": ("CUDA_ERROR_NOT_READY", "hipErrorNotReady"),
    "STREAM_NON_BLOCKING": ("CU_STREAM_NON_BLOCKING", "hipStreamNonBlocking"),
    "EVENT_UNTIMED": ("CU_EVENT_DISABLE_TIMING", "hipEventDisableTiming"),
    "HOST_PORTABLE": ("CU_MEMHOSTALLOC_PORTABLE", "hipHostMallocPortable"),
    "FUNCTION_MAX_ITEMS": ("CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK", "HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK"),
    "FUNCTION_MAX_DYNAMIC_SHARED": ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", None),
    "COMPILER_BAD_OPTION": ("NVRTC_ERROR_INVALID_OPTION", "HIPRTC_ERROR_INVALID_OPTION"),
    "COMPILER_REFUSES": ("NVRTC_ERROR_COMPILATION", "HIPRTC_ERROR_COMPILATION"),
}


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*|__dparm\(\w*\)", " ", text, flags=re.S)


def kind(parameter):
    """p a pointer or as wide, z a size, i an integer of 32 bits or less."""
    if "*" in parameter or "[" in parameter:
        return "p"
    words = [w for w in re.findall(r"\w+", parameter) if w not in ("const", "struct", "enum")]
    for n in (2, 1):
        name = " ".join(words[:n])
        if name in HANDLES:
            return "p"
        if name in SMALL:
            return "i"
        if name in WIDE:
            return "z"
    return "?" + parameter.strip()


def kinds(parameters):
    return "" if parameters.strip() in ("", "void") else " ".join(kind(p) for p in parameters.split(","))


def our_calls(vendor):
    """{name: kinds of the parameters}; vendor 0: CUDA, 1: HIP."""
    text = re.sub(r"\\\n", " ", without_comments(OURS))
    rows = re.findall(r'X\((\w+),\s*("\w+"|NULL),\s*("\w+"|NULL),\s*\(([^()]*)\)\s*\)', text)
    return {row[1 + vendor].strip('"'): kinds(row[3]) for row in rows if row[1 + vendor] != "NULL"}


def their_calls(text):
    found = re.findall(r"\b(?:CUresult|nvrtcResult|hipError_t|hiprtcResult)\s+(?:CUDAAPI\s+)?(\w+)\s*\(([^()]*)\)\s*;", text)
    calls = {name: kinds(parameters) for name, parameters in reversed(found)}  # later ones are of old versions
    for name, other in re.findall(r"#define +(cu\w+) +(cu\w+) *\n", text):  # the header's name of another function
        if name in calls:
            calls.setdefault(other, calls[name])
    return calls


def their_numbers(text):
    """Of enumerations and macros; what has no number of its own is one more than the one before."""
    numbers = {}
    for body in re.findall(r"\benum\b[^{};]*\{([^{}]*)\}", text):
        value = -1
        for item in body.split(","):
            match = re.match(r"\s*(\w+)\s*(?:=\s*(.+?))?\s*$", item, flags=re.S)
            if not match:
                continue
            given = match[2]
            number = re.match(r"(-?(?:0x[0-9a-fA-F]+|\d+))[uUlL]*$", given or "")
            value = int(number[1], 0) if number else numbers.get(given, value + 1)
            numbers[match[1]] = value
    for name, value in re.findall(r"#define\s+(\w+)\s+\(?(0x[0-9a-fA-F]+|\d+)\)?", text):
        numbers.setdefault(name, int(value, 0))
    return numbers


def our_numbers(vendor):
    numbers = {name: int(value) for name, value in re.findall(r"\b([A-Z_]{4,}) = (\d+)", OURS)}
    row = re.search(rf"#define {('CUDA', 'HIP')[vendor]}_ATTRIBUTES\s+\{{(.*?)\}}", OURS.replace("\\\n", " "), flags=re.S)[1]
    numbers.update({name: int(value) for name, value in re.findall(r"\.(\w+) = (\d+)", row)})
    return numbers


def compare(vendor, title, text, report):
    ours, theirs = our_calls(vendor), their_calls(text)
    faults = []
    for name, wanted in ours.items():
        base = re.sub(r"(_v2|R0600)$", "", name)
        got = theirs.get(base, theirs.get(name))
        if got is None:
            faults.append(f"{name} is not in the headers")
        elif got != wanted:
            faults.append(f"{name}({got}) is declared as ({wanted})")
    numbers, mine = their_numbers(text), our_numbers(vendor)
    for name, names in NUMBERS.items():
        if names[vendor] and numbers.get(names[vendor]) != mine.get(name):
            faults.append(f"{names[vendor]} is {numbers.get(names[vendor])}, not {mine.get(name)}")
    rows = re.findall(r'X\((\d+), "(\w+)", "(\w+)"', ERRORS)
    for row in rows:
        known = numbers.get(row[1 + vendor])
        if known is None and vendor == 0:
            faults.append(f"{row[1 + vendor]} is not in the headers")
        elif known not in (None, int(row[0])) and row[1 + vendor] != "hipErrorUnknown":  # HIP lacks some of CUDA's
            faults.append(f"{row[1 + vendor]} is {known}, not {row[0]}")
    for fault in faults:
        print(f"failed: {title}: {fault}")
    report["failed"] += len(faults)
    report["passed"] += len(ours) + len(rows) + len(NUMBERS) - len(faults)
    print(f"{title}: {len(ours)} calls and {len(rows) + len(NUMBERS)} numbers compared")


# Our struct's fields: the vendors'.
STRUCTS = [
    ("cuda_node", "CUDA_KERNEL_NODE_PARAMS_v1", {"function": "func", "groups": "gridDimX", "items": "blockDimX",
                                                 "local_bytes": "sharedMemBytes", "values": "kernelParams",
                                                 "extra": "extra"}),
    ("hip_node", "hipKernelNodeParams", {"function": "func", "groups": "gridDim", "items": "blockDim",
                                         "local_bytes": "sharedMemBytes", "values": "kernelParams", "extra": "extra"}),
]


def compare_structs(vendor, title, file, report):
    """The compiler says whether fields lie in the same places."""
    ours, theirs, fields = STRUCTS[vendor]
    body = re.search(rf"typedef struct {ours} \{{.*?\}} {ours};", without_comments(OURS), flags=re.S)[0]
    asserts = [f"offsetof({ours}, {a}) == offsetof({theirs}, {b})" for a, b in fields.items()]
    asserts.append(f"sizeof({ours}) == sizeof({theirs})")
    include = file[:file.index("/include/") + len("/include")]
    text = f"#include <stddef.h>\n#include <{file[len(include) + 1:]}>\n{body}\n" + "".join(
        f'_Static_assert({a}, "{a}");\n' for a in asserts)
    done = subprocess.run(["cc", "-std=gnu17", "-fsyntax-only", "-w", "-D__HIP_PLATFORM_AMD__", "-isystem", include, "-xc",
                           "-"], input=text, text=True, capture_output=True)
    if done.returncode:
        print(f"failed: {title}: {ours} is not laid out as {theirs}\n{done.stderr[:2000]}")
    report["failed" if done.returncode else "passed"] += 1


# A file of ours: the vendor's headers (the variable of their folder, their names, those of an older version), what its
# calls return, and structs.
PERFORMANCE = {"algorithm": "algo", "state": "status", "time": "time", "workspace": "memory", "same_bits": "determinism",
               "math": "mathType", "reserved": "reserved"}
LIBRARIES = {
    "src/vendor/nccl.c": {
        "title": "NCCL", "variable": "CUDA_INCLUDE", "headers": ["nccl.h"],
        "places": ["/usr/local/cuda*/include/", "/usr/include/", "/usr/local/include/"], "result": "ncclResult_t",
        "structs": {},
    },
    "src/vendor/cudnn.c": {
        "title": "cuDNN", "variable": "CUDNN_INCLUDE",
        "places": ["/usr/local/cuda*/include/", "/usr/include/", "/usr/include/x86_64-linux-gnu/"],
        "headers": ["cudnn_cnn.h", "cudnn_ops.h", "cudnn_graph.h"],
        "older": ["cudnn_cnn_train.h", "cudnn_cnn_infer.h", "cudnn_ops_infer.h"],
        "result": r"cudnnStatus_t\s+CUDNNWINAPI", "ignored": r"\bCUDNN_DEPRECATED(_ENUM)?\b",
        "structs": {("cudnn_answer", f"cudnnConvolution{way}AlgoPerf_t"): PERFORMANCE
                    for way in ("Fwd", "BwdData", "BwdFilter")},
    },
    "src/vendor/cublaslt.c": {
        "title": "cuBLASLt", "variable": "CUDA_INCLUDE", "headers": ["cublasLt.h", "cublas_api.h", "library_types.h"],
        "places": ["/usr/local/cuda*/include/"], "result": r"cublasStatus_t\s+CUBLASWINAPI",
        "structs": {("cublaslt_answer", "cublasLtMatmulHeuristicResult_t"): {
            "algorithm": "algo", "workspace": "workspaceSize", "state": "state", "waves": "wavesCount"},
            ("cublaslt_algorithm", "cublasLtMatmulAlgo_t"): {"data": "data"}},
    },
    "src/vendor/rocblas.c": {
        "title": "rocBLAS", "variable": "ROCBLAS_INCLUDE", "places": ["/usr/include/", "/opt/rocm*/include/"],
        "headers": [f"rocblas/internal/rocblas-{part}.h" for part in ("auxiliary", "functions", "types")],
        "result": r"ROCBLAS_EXPORT\s+rocblas_status", "structs": {},
    },
}


def compare_library(ours, library, files, older, report):
    """Calls, structs, and each number that we write under its vendor's name."""
    mine = without_comments((ROOT / ours).read_text())
    text = without_comments("\n".join(pathlib.Path(f).read_text(errors="replace") for f in reversed(files)))
    text = re.sub(library.get("ignored", r"\A(?!)"), " ", text)
    theirs = {name: kinds(parameters) for name, parameters in
              re.findall(rf"\b{library['result']}\s+(\w+)\s*\(([^()]*)\)\s*;", text)}
    calls = re.findall(r'X\(\w+,\s*"(\w+)",\s*\(([^()]*)\)\s*\)', re.sub(r"\\\n", " ", mine))
    numbers = their_numbers(text)
    written = re.findall(r"\b([A-Za-z]+_[A-Za-z0-9_]+) = (\d+)\b", mine)
    written += [(name, value) for value, name in re.findall(r'\{(\d+), "(\w+)"', mine)]
    faults = [f"{name}({theirs.get(name)}) is declared as ({kinds(wanted)})" for name, wanted in calls
              if theirs.get(name) != kinds(wanted)]
    values = {name: [int(v) for n, v in written if n == name] for name, _ in written}  # several: of several versions
    faults += [f"{name} is {numbers.get(name)}, not {some}" for name, some in values.items()
               if numbers.get(name) not in some and (name in numbers or not older)]
    include = os.path.dirname(files[0])
    toolkit = first_file("CUDA_INCLUDE", "cuda_runtime.h", "/usr/local/cuda*/include/") or include + "/"
    for (a, b), fields in library["structs"].items():
        bodies = "".join(re.search(rf"typedef struct {name} \{{.*?\}} {name};", mine, flags=re.S)[0] + "\n"
                         for name in reversed(dict.fromkeys(ours for ours, _ in library["structs"])))
        asserts = [f"offsetof({a}, {x}) == offsetof({b}, {y})" for x, y in fields.items()] + [f"sizeof({a}) == sizeof({b})"]
        text = f"#include <{os.path.basename(files[0])}>\n#include <stddef.h>\n{bodies}" + "".join(
            f'_Static_assert({x}, "{x}");\n' for x in asserts)
        done = subprocess.run(["cc", "-std=gnu17", "-fsyntax-only", "-w", "-isystem", include, "-isystem",
                               os.path.dirname(toolkit), "-xc", "-"], input=text, text=True, capture_output=True)
        faults += [f"{a} is not laid out as {b}\n{done.stderr[:2000]}"] if done.returncode else []
    for fault in faults:
        print(f"failed: {library['title']}: {fault}")
    compared = len(calls) + len(written) + len(library["structs"])
    report["failed"] += len(faults) + (len(calls) == 0)
    report["passed"] += compared - len(faults)
    print(f"{library['title']}: {len(calls)} calls and {len(written)} numbers compared")


def compare_libraries(report):
    for ours, library in LIBRARIES.items():
        for names in (library["headers"], library.get("older", [])):
            files = [first_file(library["variable"], name, *library["places"]) for name in names]
            if files and all(files):
                break
        if files and all(files):
            compare_library(ours, library, files, names is library.get("older"), report)
        else:
            print(f"skipped: the headers of {library['title']} are not here")
            report["skipped"] += 1


def first_file(variable, name, *patterns):
    places = ([os.environ[variable] + "/" + name] if variable in os.environ else []) + [p + name for p in patterns]
    return next((found for place in places for found in sorted(glob.glob(place), reverse=True)), None)


def main():
    report = {"passed": 0, "failed": 0, "skipped": 0}
    packages = str(ROOT / ".deps/venv/lib/python3*/site-packages/nvidia/*/include/")
    cuda = [first_file("CUDA_INCLUDE", "cuda.h", "/usr/local/cuda*/include/", packages),
            first_file("CUDA_INCLUDE", "nvrtc.h", "/usr/local/cuda*/include/", packages)]
    hip = [first_file("HIP_INCLUDE", "hip/hip_runtime_api.h", "/usr/include/", "/opt/rocm*/include/"),
           first_file("HIP_INCLUDE", "hip/driver_types.h", "/usr/include/", "/opt/rocm*/include/"),
           first_file("HIP_INCLUDE", "hip/hiprtc.h", "/usr/include/", "/opt/rocm*/include/")]
    for vendor, (title, files) in enumerate([("CUDA", cuda), ("HIP", hip)]):
        if all(files):
            text = without_comments("\n".join(pathlib.Path(f).read_text(errors="replace") for f in files))
            compare(vendor, title, text, report)
            compare_structs(vendor, title, files[0], report)
        else:
            print(f"skipped: the headers of {title} are not here")
            report["skipped"] += 1
    compare_libraries(report)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**report))
    return report["failed"] != 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
