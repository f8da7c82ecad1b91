/* The functions of the CUDA driver that numbarnn/reference/cudnn/driver.py calls, on the host's memory, with the
   prototypes of cuda.h. For tests/test_cudnn_driver.py, which compiles this as a shared library. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201 };

static int started, blocks, streams, graphs, capturing, launches;
static char context;
static CUcontext stack[8];
static int depth;

int fake_blocks(void) { return blocks; } /* allocated and not freed */
int fake_streams(void) { return streams; }
int fake_graphs(void) { return graphs; } /* and executable ones, not destroyed */
int fake_launches(void) { return launches; }
int fake_depth(void) { return depth; }   /* of the stack of contexts */

static int outside(void) { return depth == 0 || stack[depth - 1] != &context; }

CUresult cuInit(unsigned int flags) {
    started = 1;
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}
CUresult cuDriverGetVersion(int *version) {
    *version = 13010;
    return SUCCESS;
}
CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return started ? SUCCESS : NOT_INITIALIZED;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = 40 + ordinal;
    return SUCCESS;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    return snprintf(name, (size_t)length, "fake GPU %d", device) < length ? SUCCESS : INVALID_VALUE;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) {
    *found = &context;
    return device == 40 ? SUCCESS : INVALID_VALUE;
}
CUresult cuCtxPushCurrent_v2(CUcontext pushed) {
    stack[depth++] = pushed;
    return SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext *popped) {
    *popped = stack[--depth];
    return SUCCESS;
}
CUresult cuCtxSynchronize(void) { return outside() ? INVALID_CONTEXT : SUCCESS; }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    if (outside()) return INVALID_CONTEXT;
    if (size == 0) return INVALID_VALUE;
    if (size > 1 << 20) return OUT_OF_MEMORY;
    *address = (CUdeviceptr)(size_t)malloc(size);
    blocks++;
    return SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    if (outside()) return INVALID_CONTEXT;
    free((void *)(size_t)address);
    blocks--;
    return SUCCESS;
}
CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char byte, size_t count) {
    memset((void *)(size_t)address, byte, count);
    return outside() ? INVALID_CONTEXT : SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr address, const void *host, size_t count) {
    memcpy((void *)(size_t)address, host, count);
    return outside() ? INVALID_CONTEXT : SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void *host, CUdeviceptr address, size_t count) {
    memcpy(host, (const void *)(size_t)address, count);
    return outside() ? INVALID_CONTEXT : SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char byte, size_t count, void *stream) {
    (void)stream;
    if (!capturing) memset((void *)(size_t)address, byte, count);
    return outside() ? INVALID_CONTEXT : SUCCESS;
}
CUresult cuStreamCreate(void **stream, unsigned int flags) {
    *stream = &streams;
    streams++;
    return outside() ? INVALID_CONTEXT : flags == 1 ? SUCCESS : INVALID_VALUE;
}
CUresult cuStreamDestroy_v2(void *stream) {
    streams--;
    return stream == &streams && !capturing ? SUCCESS : INVALID_VALUE;
}
CUresult cuStreamBeginCapture_v2(void *stream, int mode) {
    capturing = 1;
    return stream == &streams && mode == 2 ? SUCCESS : INVALID_VALUE;
}
CUresult cuStreamEndCapture(void *stream, void **graph) {
    capturing = 0;
    *graph = &graphs;
    graphs++;
    return stream == &streams ? SUCCESS : INVALID_VALUE;
}
CUresult cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    *executable = &launches;
    graphs++;
    return graph == &graphs && flags == 0 ? SUCCESS : INVALID_VALUE;
}
CUresult cuGraphDestroy(void *graph) {
    graphs--;
    return graph == &graphs ? SUCCESS : INVALID_VALUE;
}
CUresult cuGraphLaunch(void *executable, void *stream) {
    launches++;
    return outside() ? INVALID_CONTEXT : executable == &launches && stream == NULL ? SUCCESS : INVALID_VALUE;
}
CUresult cuGraphExecDestroy(void *executable) {
    graphs--;
    return outside() ? INVALID_CONTEXT : executable == &launches ? SUCCESS : INVALID_VALUE;
}
CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : "error";
    return SUCCESS;
}
