// A product on the matrix units of compute capability 9.0 with its epilogue, as LLVM IR for the
// NVPTX target with the units' instructions as inline PTX. Linear in the size of the epilogue.
#pragma once
#include <llvm/IR/Module.h>

#include <string>

#include "codegen/compiled.h"
#include "codegen/contraction_gpu/product_form.h"
#include "codegen/llvm/target.h"

namespace ingot::codegen {

/// Emits `kernel`'s contraction as the function `symbol`. Throws NotSupported where it has no such
/// form, or the target no such units.
GpuLaunch emit_gpu_product(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                           const std::string& symbol);
/// With that tile instead of the one the model chooses.
GpuLaunch emit_gpu_product(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                           const std::string& symbol, const ProductTile& tile);

}  // namespace ingot::codegen
