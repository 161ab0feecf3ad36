// Tensors for a program's outputs. Big ones come from a pool that recycles what callers have freed:
// a fresh mapping costs a page fault every 4 KiB, which is more than most kernels that fill it.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "runtime/host.h"

namespace ingot::trace {

/// Where the memory of a big tensor goes when it is freed.
enum class WhenFreed : std::uint8_t {
    Recycled,  // into the pool
    Returned,  // to the system, as eager's does
};

/// A fresh tensor of this layout with contents of any value. About 0.2 µs.
at::Tensor make_output(const runtime::Layout& layout, c10::Device device,
                       WhenFreed then = WhenFreed::Recycled);
/// Frees the memory that the pool keeps for later outputs, up to `keep_bytes`.
void trim_output_pool(std::size_t keep_bytes = 0);
/// The same behind a backward: what was saved is not wanted again before the next forward, and the
/// optimizer comes first. Behind a forward of which as little memory as possible is wanted, too:
/// the loss comes first.
void trim_between_programs();

}  // namespace ingot::trace
