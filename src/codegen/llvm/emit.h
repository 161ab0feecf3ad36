// Loop nests as LLVM IR functions: the entrance to CPU code generation.
//
// A nest becomes one function with the calling convention of compiled.h. Its parallel loops are a
// flat space of work items; the function decodes its first item once and then counts the loop
// indices on. The vector loop, outer or inside a phase, runs in explicit vectors of several
// registers with a masked rest. Costs some 0.2 ms of emission a kernel, then the Jit's 1-3 ms.
// Kernels with a contraction belong to src/codegen/contraction.
#pragma once
#include <llvm/IR/Module.h>

#include <string_view>

#include "codegen/compiled.h"
#include "codegen/llvm/target.h"
#include "schedule/nest.h"

namespace ingot::codegen {

struct EmitOptions {
    /// At most this many registers an operand; 0: chosen by the size of the body.
    unsigned max_registers = 0;
};

/// Adds the kernel's functions, named `symbol_prefix` and a number, to the module. Throws
/// NotSupported for a prim or type that has no code, InternalError for an ill-formed kernel.
KernelCode emit_kernel(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                       std::string_view symbol_prefix, const EmitOptions& options = {});

}  // namespace ingot::codegen
