// Loop nests as Triton: for people to read next to the PTX, and as an alternative code generator
// where Triton is installed. Reads schedule/nest.h only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/nest.h"

namespace ingot {

/// A function of the text: one nest. It takes the kernel's Argument buffers, Kernel::sizes as i64,
/// a pointer to the error word and one to scratch memory; then constants.
struct TritonFunction {
    std::string name;
    std::vector<std::string> arguments;  // their types as Triton's signatures name them
    std::int64_t x_block = 1, r_block = 1;
    int warps = 4;
    Expr points;             // over Kernel::sizes; a program takes x_block of them
    Expr scratch_bytes = 0;  // of the whole launch
};

struct TritonText {
    /// A self-contained Python module. Besides the functions it defines
    ///   run(buffers, sizes, error)
    /// where `buffers` are flat CUDA tensors for the kernel's Argument buffers in order, `sizes`
    /// the numbers of Kernel::sizes, `error` an int64 tensor with one element; as a program it
    /// makes such tensors, runs and says how long that takes.
    std::string source;
    std::vector<TritonFunction> functions;  // in order; none for a contraction
};

/// Throws NotSupported for a prim or type without a Triton form.
TritonText to_triton(const Kernel& kernel, const std::string& symbol);

}  // namespace ingot
