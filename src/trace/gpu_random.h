// A GPU's generator and how eager's kernels draw from it, so that generated kernels draw the same
// numbers (ir/philox.h). In a PyTorch without CUDA (gpu_random_none.cpp) programs can only be
// recorded, for the GPU that the project measures on.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

namespace ingot::trace {

struct GpuDraws {
    std::int64_t threads = 0;  // of a launch, at most
    int widest = 0;            // neighbours of 16 bits that one thread of dropout takes
};

/// Asks the GPU and, by a few numbers, this PyTorch's dropout, whose form differs between versions;
/// the generator is left where it was. Nothing where neither form known here explains the numbers,
/// or where the current stream is being recorded. Waits for the GPU.
std::optional<GpuDraws> how_eager_draws(c10::Device device);

/// Seed and offset of the default generator, on the GPU, which then goes on by `increment` as a
/// kernel of eager's makes it. While a CUDA graph is recorded: those of each replay.
at::Tensor take_random_state(c10::Device device, std::int64_t increment);

}  // namespace ingot::trace
