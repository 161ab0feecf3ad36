// The driver's functions and structures as we use them, in the driver's own layout. Internal to
// this folder; driver_api.cpp fills the table.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "ir/error.h"
#include "runtime/cuda/driver_api.h"

namespace ingot::runtime::cuda {

/// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
    int id;
    alignas(8) int value;
    char rest[60];
};
static_assert(sizeof(LaunchAttribute) == 72);
constexpr int kProgrammaticSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_*
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    Handle stream;
    LaunchAttribute* attributes;
    unsigned count;
};

/// CUgraphEdgeData, CUDA_KERNEL_NODE_PARAMS_v2 and CUDA_MEMSET_NODE_PARAMS.
struct EdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};
struct KernelNode {
    Handle function;
    unsigned grid[3], block[3], shared;
    void** parameters;
    void** extra;
    Handle kernel, context;
};
struct FillNode {
    std::uint64_t address;
    std::size_t pitch;
    unsigned value, element_bytes;
    std::size_t width, height;
};

struct DriverApi {
    int (*init)(unsigned);
    int (*device_get)(int*, int);
    int (*device_get_count)(int*);
    int (*device_get_attribute)(int*, int, int);
    int (*primary_retain)(Handle*, int);
    int (*context_get_current)(Handle*);
    int (*context_set_current)(Handle);
    int (*context_synchronize)();
    int (*module_load)(Handle*, const void*);
    int (*module_unload)(Handle);
    int (*module_get_function)(Handle*, Handle, const char*);
    int (*function_set_attribute)(Handle, int, int);
    int (*launch_kernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, Handle, void**, void**);
    int (*launch_kernel_ex)(const LaunchConfig*, Handle, void**, void**);  // null: an old driver
    int (*host_alloc)(void**, std::size_t, unsigned);
    int (*host_free)(void*);
    int (*upload)(std::uint64_t, const void*, std::size_t);
    int (*link_create)(unsigned, int*, void**, Handle*);
    int (*link_add)(Handle, int, void*, std::size_t, const char*, unsigned, int*, void**);
    int (*link_complete)(Handle, void**, std::size_t*);
    int (*link_destroy)(Handle);
    // What reads recorded work (recorded_work.h); all of them, or reads_graphs is false.
    bool reads_graphs;
    int (*fill_8)(std::uint64_t, unsigned char, std::size_t, Handle);
    int (*fill_16)(std::uint64_t, unsigned short, std::size_t, Handle);
    int (*fill_32)(std::uint64_t, unsigned, std::size_t, Handle);
    int (*stream_is_capturing)(Handle, int*);
    int (*stream_capture_info)(Handle, int*, std::uint64_t*, Handle*, const Handle**,
                               const EdgeData**, std::size_t*);
    int (*graph_nodes)(Handle, Handle*, std::size_t*);
    int (*node_type)(Handle, int*);
    int (*node_dependencies)(Handle, Handle*, EdgeData*, std::size_t*);
    int (*kernel_node)(Handle, KernelNode*);
    int (*kernel_node_attribute)(Handle, int, void*);
    int (*fill_node)(Handle, FillNode*);
    int (*function_parameter)(Handle, std::size_t, std::size_t*, std::size_t*);
    int (*kernel_function)(Handle*, Handle);
    // What measures work (gpu_lab.h); all of them, or measures is false.
    bool measures;
    int (*exchange_capture_mode)(int*);
    int (*stream_create)(Handle*, unsigned);
    int (*stream_destroy)(Handle);
    int (*stream_synchronize)(Handle);
    int (*event_create)(Handle*, unsigned);
    int (*event_destroy)(Handle);
    int (*event_record)(Handle, Handle);
    int (*event_elapsed)(float*, Handle, Handle);
    int (*memory_info)(std::size_t*, std::size_t*);
    int (*memory_alloc)(std::uint64_t*, std::size_t);
    int (*memory_free)(std::uint64_t);
    int (*copy)(std::uint64_t, std::uint64_t, std::size_t, Handle);
    int (*copy_in)(std::uint64_t, const void*, std::size_t, Handle);
    int (*fill)(std::uint64_t, unsigned char, std::size_t, Handle);
    int (*capture_begin)(Handle, int);
    int (*capture_end)(Handle, Handle*);
    int (*graph_instantiate)(Handle*, Handle, unsigned long long);
    int (*graph_launch)(Handle, Handle);
    int (*graph_destroy)(Handle);
    int (*graph_exec_destroy)(Handle);
    int (*error_name)(int, const char**);
    int (*error_string)(int, const char**);

    /// Throws Error, naming what was tried, unless `result` is success.
    void require(int result, const char* what) const {
        if (result == 0) return;
        const char *name = nullptr, *text = nullptr;
        error_name(result, &name);
        error_string(result, &text);
        throw Error(std::string("CUDA: ") + what + ": " + (name ? name : "unknown error") + " (" +
                    (text ? text : "no description") + ")");
    }
};

}  // namespace ingot::runtime::cuda
