// PyTorch's thread pool as the runtime's. See extern_host.h.
//
// at::parallel_for is a template over OpenMP's pragmas: a file compiled without OpenMP gets its
// serial form, silently. The build compiles this file alone with OpenMP, and links it to the OpenMP
// library that PyTorch itself uses, so that there is one pool.
#include <ATen/Parallel.h>

#include "trace/extern_host.h"

#ifndef INTRA_OP_PARALLEL
#error "compile this file with OpenMP: without it every kernel runs on one thread"
#endif

namespace ingot::trace {

int TorchThreads::count() const { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

void TorchThreads::run(int tasks, void (*body)(void*, int), void* context) const {
    at::parallel_for(0, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) body(context, static_cast<int>(t));
    });
}

}  // namespace ingot::trace
