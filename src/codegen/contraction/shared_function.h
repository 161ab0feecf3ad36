// Functions that every contraction of a module shares by name. See is_shareable in micro_kernel.h.
#pragma once
#include <llvm/IR/BasicBlock.h>
#include <llvm/IR/DerivedTypes.h>
#include <llvm/IR/Function.h>
#include <llvm/IR/Module.h>

#include <string>

namespace ingot::codegen {

/// An internal function of the module, or the one of that name it has already.
struct SharedFunction {
    llvm::Function* function;
    bool is_new;
};

/// Makes `name` with the given parameters, pointers without aliases, and an entry block; its result
/// is `result`, or nothing.
inline SharedFunction shared_function(llvm::Module& module, const std::string& name,
                                      llvm::ArrayRef<llvm::Type*> parameters,
                                      llvm::Type* result = nullptr) {
    if (llvm::Function* known = module.getFunction(name)) return {known, false};
    llvm::LLVMContext& context = module.getContext();
    auto* type = llvm::FunctionType::get(result ? result : llvm::Type::getVoidTy(context),
                                         parameters, false);
    auto* f = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, name, module);
    f->addFnAttr(llvm::Attribute::NoInline);
    f->addFnAttr(llvm::Attribute::NoUnwind);
    for (llvm::Argument& a : f->args())
        if (a.getType()->isPointerTy()) a.addAttr(llvm::Attribute::NoAlias);
    llvm::BasicBlock::Create(context, "entry", f);
    return {f, true};
}

}  // namespace ingot::codegen
