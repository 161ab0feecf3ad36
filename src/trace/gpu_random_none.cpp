// Random numbers of GPUs where PyTorch was built without CUDA. See gpu_random.h.
#include "ir/error.h"
#include "trace/gpu_random.h"

namespace ingot::trace {

/// An H200's: 132 multiprocessors of 2048 threads.
std::optional<GpuDraws> how_eager_draws(c10::Device) { return GpuDraws{132 * 2048, 8}; }

at::Tensor take_random_state(c10::Device, std::int64_t) {
    throw NotSupported("this PyTorch was built without CUDA");
}

}  // namespace ingot::trace
