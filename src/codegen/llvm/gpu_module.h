// What every kernel for NVIDIA GPUs needs from its module, whoever writes its body. Linear in the
// module.
#pragma once
#include <llvm/IR/Module.h>

namespace ingot::codegen {

/// Tells ptxas a bound of the kernel: "maxntidx" (threads of a block), "minctasm" (blocks that a
/// multiprocessor shall hold).
void annotate_kernel(llvm::Function& kernel, const char* what, unsigned count);

/// Throws InternalError for invalid IR and NotSupported where a function is called that only
/// libraries on processors have.
void check_gpu_module(const llvm::Module& module);

}  // namespace ingot::codegen
