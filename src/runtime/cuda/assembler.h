// PTX to machine code. NVIDIA's nvJitLink is used where the process has it or the loader finds it
// (PyTorch's CUDA builds ship it); it works on all cores at once. Else the driver's compiler does,
// one kernel after another. About 25 ms a kernel either way.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/driver_api.h"

namespace ingot::runtime::cuda {

/// A cubin for `gpu`. Throws InternalError with the assembler's words for PTX it does not take.
std::vector<std::uint8_t> assemble(const Gpu& gpu, const std::string& ptx);

/// Whether nvJitLink was found.
bool has_parallel_assembler();

}  // namespace ingot::runtime::cuda
