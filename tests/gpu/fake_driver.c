/* A driver of NVIDIA's without a GPU behind it, as libcuda.so.1: test_gpu_faults.py builds it and
 * says through the environment what goes wrong. Calls that compile are counted in a file. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static int result(const char* call) {
    const char* fails = getenv("FAKE_FAILS");
    return fails && strcmp(fails, call) == 0 ? setting("FAKE_ERROR", 999) : 0;
}
static char cubin[16] = "fake";

int cuInit(unsigned flags) { return result("cuInit"); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetCount(int* count) { *count = setting("FAKE_COUNT", 1); return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
    *value = which == 75 ? setting("FAKE_MAJOR", 9) : which == 76 ? 0 : which == 97 ? 1 << 17 : 132;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) { *c = cubin; return result("cuDevicePrimaryCtxRetain"); }
int cuCtxGetCurrent(void** c) { *c = cubin; return 0; }
int cuCtxSetCurrent(void* c) { return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuModuleLoadData(void** m, const void* image) { *m = cubin; return result("cuModuleLoadData"); }
int cuModuleUnload(void* m) { return 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) { *f = cubin; return 0; }
int cuFuncSetAttribute(void* f, int which, int value) { return 0; }
int cuLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                   unsigned shared, void* stream, void** parameters, void** extra) {
    return 0;
}
int cuMemHostAlloc(void** p, size_t n, unsigned flags) { *p = calloc(1, n); return 0; }
int cuMemFreeHost(void* p) { free(p); return 0; }
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t n) { return 0; }
#ifndef OLD
int cuLinkCreate_v2(unsigned n, int* names, void** values, void** link) { *link = cubin; return 0; }
#endif
int cuLinkAddData_v2(void* link, int type, void* data, size_t n, const char* name, unsigned count,
                     int* names, void** values) {
    const char* log = getenv("FAKE_LOG");
    if (log) {
        FILE* file = fopen(log, "a");
        fputs("compiled\n", file);
        fclose(file);
    }
    return result("cuLinkAddData");
}
int cuLinkComplete(void* link, void** out, size_t* n) { *out = cubin; *n = sizeof cubin; return 0; }
int cuLinkDestroy(void* link) { return 0; }
int cuGetErrorName(int error, const char** name) { *name = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "what the test asked for"; return 0; }
