/* environment.c — `trunnion help environment`: the variables that users set; docs/devices.md has all. */
#include "cli/cli.h"

void cli_help_environment(FILE *to) {
    cli_put_help("environment variables\n"
                 "\n"
                 "  TRUNNION_DEVICE       the device if --device is not given: cpu, opencl, cuda:1 …\n"
                 "  TRUNNION_THREADS      CPU threads if --threads is not given\n"
                 "  TRUNNION_CACHE        folder of models, compiled kernels and tuning\n"
                 "                        (default ~/.cache/trunnion)\n"
                 "  HF_ENDPOINT, HF_TOKEN  address of the model hub (default https://huggingface.co) and\n"
                 "                        access token, for `trunnion pull`\n"
                 "  TRUNNION_LOG          0: silent, 1: notices, 2: details\n"
                 "  TRUNNION_LIBRARY      libraries for matrix products, as --library\n"
                 "  TRUNNION_NUMERICS     exact or fast, as --numerics\n"
                 "  TRUNNION_MATRIX       0: no matrix units; tf32: f32 products use them too\n"
                 "  TRUNNION_GRAPHS       0: no graphs or command buffers of the driver for repeated work\n"
                 "  TRUNNION_TUNE         1: measure products at their first use; 0: ignore the\n"
                 "                        tuning file\n"
                 "  TRUNNION_CHECK_INDICES  1: indices are checked on other devices than the CPU too\n"
                 "  TRUNNION_ISA          highest instruction set of the CPU: baseline, avx2, avx512\n"
                 "  TRUNNION_PROBE_SECONDS  time limit of looking for devices, per backend (default 5)\n"
                 "  TRUNNION_CUDA_LIB     the library of a backend: a file, or the folder with it; also\n"
                 "                        ROCM, VULKAN, OPENCL, WEBGPU, METAL, ONNXRUNTIME, TORCH,\n"
                 "                        MPI, OPENBLAS, MKL, ONEDNN, BLIS\n"
                 "  NO_COLOR              any text: no colors and no progress lines\n"
                 "\n"
                 "Options take precedence. docs/devices.md has the full list.\n",
                 to);
}
