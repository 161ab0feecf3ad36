// See gpu_module.h.
#include "codegen/llvm/gpu_module.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/Metadata.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <string>

#include "ir/error.h"

namespace ingot::codegen {

void annotate_kernel(llvm::Function& kernel, const char* what, unsigned count) {
    llvm::LLVMContext& c = kernel.getContext();
    auto* number = llvm::ConstantInt::get(llvm::Type::getInt32Ty(c), count);
    llvm::Metadata* bound[] = {llvm::ValueAsMetadata::get(&kernel), llvm::MDString::get(c, what),
                               llvm::ConstantAsMetadata::get(number)};
    kernel.getParent()
        ->getOrInsertNamedMetadata("nvvm.annotations")
        ->addOperand(llvm::MDNode::get(c, bound));
}

void check_gpu_module(const llvm::Module& module) {
    std::string message;
    llvm::raw_string_ostream stream(message);
    if (llvm::verifyModule(module, &stream)) throw InternalError("invalid LLVM IR: " + message);
    for (const llvm::Function& f : module)
        if (f.isDeclaration() && !f.isIntrinsic())
            throw NotSupported("'" + f.getName().str() + "' is a library function that GPUs lack");
}

}  // namespace ingot::codegen
