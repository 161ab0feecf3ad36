// Runs a kernel's loop nests one point at a time: the oracle for the scheduler and code generation.
//
// Numbers follow ir/reference.h: each inst is computed in double and rounded to its type, sums are
// accumulated in double. Every access is checked against the buffer's size, every scratch buffer
// starts with garbage at each outer point, so nests that rely on neither being so are caught.
#pragma once
#include <cstdint>
#include <span>

#include "schedule/nest.h"

namespace ingot {

/// The order in which outer points are visited; the result must not depend on it.
enum class PointOrder : std::uint8_t { Forwards, Backwards };

/// Carries the kernel out on memory: `buffers` are the Argument buffers in order, `sizes` the
/// values of Kernel::sizes. False when a checked index was out of range (the kernel's error flag).
/// Throws InternalError on an access outside a buffer or a malformed kernel.
bool evaluate(const Kernel& kernel, std::span<void* const> buffers,
              std::span<const std::int64_t> sizes, PointOrder order = PointOrder::Forwards);

}  // namespace ingot
