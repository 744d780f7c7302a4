/* gpu_api.h — the prototypes of the double of CUDA, with DOUBLE_HIP of ROCm's, written after the vendors'
 * documentation.
 *
 * Results are the vendors' enumerations; device addresses, which are numbers in CUDA, are pointers.
 * test_double.c compares the
 * shapes with the vendor's headers where they are installed, so this header is C and C++. */
#ifndef TN_DOUBLE_GPU_API_H
#define TN_DOUBLE_GPU_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef DOUBLE_HIP
#define API(cuda, hip) hip
#else
#define API(cuda, hip) cuda
#endif
#define API_EXPORT __attribute__((visibility("default")))

typedef struct gpu_context gpu_context;
typedef struct gpu_program gpu_program;

/* devices */
API_EXPORT int API(cuInit, hipInit)(unsigned flags);
API_EXPORT int API(cuDriverGetVersion, hipDriverGetVersion)(int *version);
API_EXPORT int API(cuDeviceGetCount, hipGetDeviceCount)(int *count);
API_EXPORT int API(cuDeviceGet, hipDeviceGet)(int *device, int ordinal);
API_EXPORT int API(cuDeviceGetName, hipDeviceGetName)(char *name, int size, int device);
API_EXPORT int API(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device);
API_EXPORT int API(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)(char *text, int size, int device);
API_EXPORT int API(cuDeviceGetUuid, hipDeviceGetUuid)(void *bytes, int device); /* 16 of them */
API_EXPORT int API(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int attribute, int device);

/* contexts */
#ifdef DOUBLE_HIP
API_EXPORT int hipRuntimeGetVersion(int *version);
API_EXPORT int hipGetDeviceProperties(void *properties, int device); /* the struct of ROCm 5 and before */
API_EXPORT int hipGetDevicePropertiesR0600(void *properties, int device);
API_EXPORT int hipSetDevice(int device);
API_EXPORT int hipGetDevice(int *device);
API_EXPORT int hipDeviceReset(void);
API_EXPORT const char *hipGetErrorName(int error);
API_EXPORT const char *hipGetErrorString(int error);
#else
API_EXPORT int cuCtxSetCurrent(gpu_context *context);
API_EXPORT int cuCtxGetCurrent(gpu_context **context);
API_EXPORT int cuCtxPushCurrent_v2(gpu_context *context);
API_EXPORT int cuCtxPopCurrent_v2(gpu_context **context);
API_EXPORT int cuGetErrorName(int error, const char **name);
API_EXPORT int cuGetErrorString(int error, const char **text);
#endif
API_EXPORT int API(cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain)(gpu_context **context, int device);
API_EXPORT int API(cuDevicePrimaryCtxRelease_v2, hipDevicePrimaryCtxRelease)(int device);
API_EXPORT int API(cuCtxSynchronize, hipDeviceSynchronize)(void);

/* streams and events */
API_EXPORT int API(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, unsigned flags);
API_EXPORT int API(cuStreamDestroy_v2, hipStreamDestroy)(void *stream);
API_EXPORT int API(cuStreamSynchronize, hipStreamSynchronize)(void *stream);
API_EXPORT int API(cuStreamQuery, hipStreamQuery)(void *stream);
API_EXPORT int API(cuStreamWaitEvent, hipStreamWaitEvent)(void *stream, void *event, unsigned flags);
API_EXPORT int API(cuEventCreate, hipEventCreateWithFlags)(void **event, unsigned flags);
API_EXPORT int API(cuEventDestroy_v2, hipEventDestroy)(void *event);
API_EXPORT int API(cuEventRecord, hipEventRecord)(void *event, void *stream);
API_EXPORT int API(cuEventQuery, hipEventQuery)(void *event);
API_EXPORT int API(cuEventSynchronize, hipEventSynchronize)(void *event);
API_EXPORT int API(cuEventElapsedTime, hipEventElapsedTime)(float *milliseconds, void *from, void *to);
#ifndef DOUBLE_HIP
API_EXPORT int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to);
#endif

/* memory */
API_EXPORT int API(cuMemGetInfo_v2, hipMemGetInfo)(size_t *available, size_t *total);
API_EXPORT int API(cuMemAlloc_v2, hipMalloc)(void **address, size_t bytes);
API_EXPORT int API(cuMemFree_v2, hipFree)(void *address);
API_EXPORT int API(cuMemHostAlloc, hipHostMalloc)(void **address, size_t bytes, unsigned flags);
API_EXPORT int API(cuMemFreeHost, hipHostFree)(void *address);
API_EXPORT int API(cuMemcpyHtoD_v2, hipMemcpyHtoD)(void *to, const void *from, size_t bytes);
API_EXPORT int API(cuMemcpyDtoH_v2, hipMemcpyDtoH)(void *to, const void *from, size_t bytes);
API_EXPORT int API(cuMemcpyDtoD_v2, hipMemcpyDtoD)(void *to, const void *from, size_t bytes);
API_EXPORT int API(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(void *to, const void *from, size_t bytes, void *stream);
API_EXPORT int API(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *to, const void *from, size_t bytes, void *stream);
API_EXPORT int API(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(void *to, const void *from, size_t bytes, void *stream);
API_EXPORT int API(cuMemcpyPeerAsync, hipMemcpyPeerAsync)(void *to, API(void *, int) to_where, const void *from,
                                                          API(const void *, int) from_where, size_t bytes,
                                                          void *stream);
API_EXPORT int API(cuMemsetD8Async, hipMemsetD8Async)(void *to, unsigned char value, size_t bytes, void *stream);

/* modules and launches; the numbers: workgroups, items of each, bytes of dynamic workgroup memory */
API_EXPORT int API(cuModuleLoadData, hipModuleLoadData)(void **module, const void *image);
API_EXPORT int API(cuModuleUnload, hipModuleUnload)(void *module);
API_EXPORT int API(cuModuleGetFunction, hipModuleGetFunction)(void **function, void *module, const char *name);
API_EXPORT int API(cuFuncGetAttribute, hipFuncGetAttribute)(int *value, int attribute, void *function);
#ifndef DOUBLE_HIP
API_EXPORT int cuFuncSetAttribute(void *function, int attribute, int value);
#endif
API_EXPORT int API(cuLaunchKernel, hipModuleLaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz,
                                                          unsigned ix, unsigned iy, unsigned iz, unsigned dynamic,
                                                          void *stream, void **values, void **extra);

/* graphs of kernels */
typedef struct gpu_node gpu_node;
#ifdef DOUBLE_HIP
typedef struct gpu_node_params {
    unsigned items[3];
    void **extra;
    void *function;
    unsigned groups[3];
    void **values;
    unsigned dynamic;
} gpu_node_params;
#else
typedef struct gpu_node_params {
    void *function;
    unsigned groups[3], items[3], dynamic;
    void **values;
    void **extra;
} gpu_node_params;
#endif
API_EXPORT int API(cuGraphCreate, hipGraphCreate)(void **graph, unsigned flags);
API_EXPORT int API(cuGraphDestroy, hipGraphDestroy)(void *graph);
API_EXPORT int API(cuGraphAddKernelNode, hipGraphAddKernelNode)(gpu_node **node, void *graph, gpu_node *const *behind,
                                                                size_t count, const gpu_node_params *params);
API_EXPORT int API(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(void **made, void *graph,
                                                                              unsigned long long flags);
API_EXPORT int API(cuGraphExecKernelNodeSetParams, hipGraphExecKernelNodeSetParams)(void *made, gpu_node *node,
                                                                                    const gpu_node_params *params);
API_EXPORT int API(cuGraphLaunch, hipGraphLaunch)(void *made, void *stream);
API_EXPORT int API(cuGraphExecDestroy, hipGraphExecDestroy)(void *made);

/* the run-time compiler */
API_EXPORT int API(nvrtcVersion, hiprtcVersion)(int *major, int *minor);
API_EXPORT const char *API(nvrtcGetErrorString, hiprtcGetErrorString)(int error);
API_EXPORT int API(nvrtcCreateProgram, hiprtcCreateProgram)(gpu_program **program, const char *text, const char *name,
                                                            int headers, const char *const *header_texts,
                                                            const char *const *header_names);
API_EXPORT int API(nvrtcDestroyProgram, hiprtcDestroyProgram)(gpu_program **program);
API_EXPORT int API(nvrtcCompileProgram, hiprtcCompileProgram)(gpu_program *program, int count,
                                                              const char *const *options);
API_EXPORT int API(nvrtcGetProgramLogSize, hiprtcGetProgramLogSize)(gpu_program *program, size_t *size);
API_EXPORT int API(nvrtcGetProgramLog, hiprtcGetProgramLog)(gpu_program *program, char *log);
API_EXPORT int API(nvrtcGetCUBINSize, hiprtcGetCodeSize)(gpu_program *program, size_t *size);
API_EXPORT int API(nvrtcGetCUBIN, hiprtcGetCode)(gpu_program *program, char *out);
#ifndef DOUBLE_HIP
API_EXPORT int nvrtcGetNumSupportedArchs(int *count);
API_EXPORT int nvrtcGetSupportedArchs(int *archs);
API_EXPORT int nvrtcGetPTXSize(gpu_program *program, size_t *size);
API_EXPORT int nvrtcGetPTX(gpu_program *program, char *out);
#endif

/* libraries of matrix products */
#ifndef DOUBLE_HIP
typedef struct gpu_algorithm {
    unsigned long long data[8];
} gpu_algorithm;
typedef struct gpu_answer {
    gpu_algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} gpu_answer;
API_EXPORT int cublasLtCreate(void **handle);
API_EXPORT int cublasLtDestroy(void *handle);
API_EXPORT int cublasLtMatrixLayoutCreate(void **layout, int type, unsigned long long rows, unsigned long long columns,
                                          long long ld);
API_EXPORT int cublasLtMatrixLayoutDestroy(void *layout);
API_EXPORT int cublasLtMatrixLayoutSetAttribute(void *layout, int what, const void *value, size_t bytes);
API_EXPORT int cublasLtMatmulDescCreate(void **desc, int compute, int scale);
API_EXPORT int cublasLtMatmulDescDestroy(void *desc);
API_EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int what, const void *value, size_t bytes);
API_EXPORT int cublasLtMatmulPreferenceCreate(void **preference);
API_EXPORT int cublasLtMatmulPreferenceDestroy(void *preference);
API_EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int what, const void *value, size_t bytes);
API_EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                              void *preference, int wanted, gpu_answer *answers, int *count);
API_EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                              void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                              const gpu_algorithm *algorithm, void *workspace, size_t bytes, void *stream);

/* convolutions */
typedef struct gpu_conv_answer {
    int algorithm, state;
    float time;
    size_t workspace;
    int same_bits, math, reserved[3];
} gpu_conv_answer;
API_EXPORT int cudnnCreate(void **handle);
API_EXPORT int cudnnDestroy(void *handle);
API_EXPORT int cudnnSetStream(void *handle, void *stream);
API_EXPORT int cudnnCreateTensorDescriptor(void **out);
API_EXPORT int cudnnDestroyTensorDescriptor(void *tensor);
API_EXPORT int cudnnSetTensor4dDescriptor(void *tensor, int format, int type, int n, int c, int h, int w);
API_EXPORT int cudnnCreateFilterDescriptor(void **out);
API_EXPORT int cudnnDestroyFilterDescriptor(void *filter);
API_EXPORT int cudnnSetFilter4dDescriptor(void *filter, int type, int format, int k, int c, int h, int w);
API_EXPORT int cudnnCreateConvolutionDescriptor(void **out);
API_EXPORT int cudnnDestroyConvolutionDescriptor(void *conv);
API_EXPORT int cudnnSetConvolution2dDescriptor(void *conv, int pad_h, int pad_w, int stride_h, int stride_w,
                                               int dilation_h, int dilation_w, int mode, int type);
API_EXPORT int cudnnSetConvolutionGroupCount(void *conv, int groups);
API_EXPORT int cudnnSetConvolutionMathType(void *conv, int math);
#define CONV_CALLS(way)                                                                                              \
    API_EXPORT int cudnnGetConvolution##way##Algorithm_v7(void *handle, void *a, void *b, void *conv, void *out,     \
                                                          int wanted, int *count, gpu_conv_answer *answers);         \
    API_EXPORT int cudnnGetConvolution##way##WorkspaceSize(void *handle, void *a, void *b, void *conv, void *out,    \
                                                           int algorithm, size_t *bytes);                            \
    API_EXPORT int cudnnConvolution##way(void *handle, const void *alpha, void *a_desc, const void *a, void *b_desc, \
                                         const void *b, void *conv, int algorithm, void *workspace, size_t bytes,    \
                                         const void *beta, void *out_desc, void *out);
CONV_CALLS(Forward)
CONV_CALLS(BackwardData)
CONV_CALLS(BackwardFilter)
#undef CONV_CALLS
#else
API_EXPORT int rocblas_create_handle(void **out);
API_EXPORT int rocblas_destroy_handle(void *of);
API_EXPORT int rocblas_set_stream(void *of, void *stream);
API_EXPORT int rocblas_set_atomics_mode(void *of, int mode);
API_EXPORT int rocblas_set_workspace(void *of, void *address, size_t bytes);
API_EXPORT int rocblas_start_device_memory_size_query(void *of);
API_EXPORT int rocblas_stop_device_memory_size_query(void *of, size_t *bytes);
API_EXPORT int rocblas_gemm_strided_batched_ex(void *of, int turn_a, int turn_b, int m, int n, int k, const void *alpha,
                                               const void *a, int a_type, int a_ld, int64_t a_stride, const void *b,
                                               int b_type, int b_ld, int64_t b_stride, const void *beta, const void *c,
                                               int c_type, int c_ld, int64_t c_stride, void *d, int d_type, int d_ld,
                                               int64_t d_stride, int batch, int sums, int algorithm, int32_t solution,
                                               uint32_t flags);
#endif

/* What only a double has: faults as in tests/fakes/opencl_faults.c, and how many misuses there were. */
API_EXPORT void faults_arm(const char *name, long n, int error, int forever);
API_EXPORT long faults_counted(void);
API_EXPORT long faults_live(void);
API_EXPORT long faults_failures(void);
API_EXPORT long double_misuses(void);

#endif
