// One loop nest as one function: what emit_kernel is made of. Internal to code generation.
#pragma once
#include "codegen/llvm/emit.h"
#include "codegen/llvm/emit_shape.h"

namespace ingot::codegen {

/// An empty function with the calling convention of KernelFn, set up for the target's vectors.
llvm::Function* make_kernel_function(llvm::Module& module, std::string_view symbol,
                                     const TargetInfo& target);

/// Fills `function` with the nest's code.
void emit_nest(llvm::Function& function, const Kernel& kernel, const Nest& nest,
               const NestShape& shape, const TargetInfo& target);

/// Bytes a scratch buffer takes of a call's scratch memory: a multiple of 64. Where points are
/// lanes, each has its own.
Expr scratch_bytes(const KernelBuffer& buffer, const NestShape& shape);

}  // namespace ingot::codegen
