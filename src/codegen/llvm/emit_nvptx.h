// Loop nests for NVIDIA GPUs: the same bodies as on CPUs, one lane a thread, as LLVM IR for the
// NVPTX target.
//
// Two mappings. Nests whose phases have no loops, or only short ones, take a thread for each outer
// point, so that neighbouring threads run along the last outer loop. Row kernels (softmax, norms,
// sums) take a block for each outer point: its threads walk the loops of a phase side by side,
// reductions go through shuffles within a warp and shared memory between warps, Scratch buffers
// live in shared memory. Linear in the size of the kernel.
#pragma once
#include <llvm/IR/Module.h>

#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiled.h"
#include "codegen/gpu_forms.h"
#include "codegen/llvm/target.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// Emits one function for each nest of `kernel` into `module` (whose target is NVPTX). Throws
/// NotSupported for what has no code on a GPU: library functions, Scratch buffers beyond shared
/// memory, contractions. `form`: of all its nests.
std::vector<GpuLaunch> emit_nvptx(llvm::Module& module, const Kernel& kernel,
                                  const TargetInfo& target, std::string_view prefix,
                                  const NestForm& form = {});

}  // namespace ingot::codegen
