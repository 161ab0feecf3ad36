// Loop nests as Triton: for people to read next to the PTX, and as an alternative code generator
// where Triton is installed. Reads schedule/nest.h only.
#pragma once
#include <string>

#include "schedule/nest.h"

namespace ingot {

/// A self-contained Python module. It defines one @triton.jit function a nest (or one for the
/// contraction) and
///   run(buffers, sizes, error)
/// where `buffers` are flat CUDA tensors for the kernel's Argument buffers in order, `sizes` the
/// numbers of Kernel::sizes, `error` an int64 tensor with one element. Throws NotSupported for a
/// prim or type without a Triton form.
std::string to_triton(const Kernel& kernel, const std::string& symbol);

}  // namespace ingot
