// What code generation promises the runtime: the calling convention of a compiled kernel.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/expr.h"

namespace ingot {

/// buffers: the kernel's Argument buffers in order. sizes: the values of Kernel::sizes. The call
/// carries out the work items [begin, end); any split of [0, work) over threads gives the same
/// result. scratch: at least scratch_bytes, 64-byte aligned, private to the call. error: set to a
/// nonzero KernelError when an index was out of range or an integer was divided by zero (the host
/// then runs eager, which raises); never cleared.
using KernelFn = void (*)(void* const* buffers, const std::int64_t* sizes, std::int64_t begin,
                          std::int64_t end, void* scratch, std::int64_t* error);

enum KernelError : std::int64_t { kNoError = 0, kIndexOutOfRange = 1, kDivisionByZero = 2 };

/// One parallel region. A kernel with several nests, or one that must wait for all threads in
/// between, has several.
struct Launch {
    std::string symbol;  // the function's name in the object
    Expr work;           // number of work items, over Kernel::sizes
    Expr grain;          // smallest number of items worth a thread of its own
    Expr scratch_bytes;  // per thread
};

struct KernelCode {
    std::vector<Launch> launches;
};

/// One grid of a kernel on a GPU. Parameters of the function: the kernel's Argument buffers, then
/// Kernel::sizes as i64, a pointer to the error word, one to `scratch_bytes` of memory, and two
/// null pointers (for a compiler that adds parameters of its own); it may take fewer of them.
struct GpuLaunch {
    std::string symbol;
    Expr points;                    // outer points, over Kernel::sizes
    unsigned points_per_block = 1;  // of one pass
    unsigned threads = 256;         // of a block
    Expr shared_bytes = 0;          // dynamic shared memory of a block
    Expr scratch_bytes = 0;         // of the whole grid, in the GPU's memory
    bool strides = true;            // with fewer blocks the code strides over the rest
    bool overlaps = false;  // it waits by itself for what was launched before, and may start early
    bool block_per_point() const { return points_per_block == 1; }
    /// Blocks to launch.
    Expr blocks() const { return ceil_div(points, static_cast<int>(points_per_block)); }
};

}  // namespace ingot
