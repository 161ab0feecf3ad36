// Contractions as machine code: matmul, linear, batched matmul and convolution from one template.
//
// The function that comes out walks work items (batch, block of rows, panel of columns). For a new
// block of rows it fills a table of pointers to A's rows (for a convolution: to every pixel a
// filter row touches, or to zeros outside the image) and, where that pays, packs A. Then for every
// tile of the block: the micro-kernel sums into a tile in scratch that never leaves the first
// cache, and the epilogue runs over it once, vector by vector, and stores.
//
// Cost: a kernel compiles in a few milliseconds; at BERT's shapes the code runs at 93-97 % of the
// FMA peak. Stands between the schedule's Contraction and the Jit.
#pragma once
#include <llvm/IR/Module.h>

#include <string_view>

#include "codegen/compiled.h"
#include "codegen/llvm/target.h"
#include "schedule/contraction_model.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// The part of a target's description that tile sizes depend on.
VectorTarget vector_target(const TargetInfo& target);

/// Whether the target does such convolutions by minimal filtering (winograd.h), taps that lie at
/// even distances being read where they are; and whether it does this one.
bool filters(const FilterSizes& sizes, const TargetInfo& target);
bool filters_gradient(const FilterSizes& sizes, const TargetInfo& target);
bool filters(const Kernel& kernel, const TargetInfo& target);

/// Appends the kernel's code to `module`, its entry point named after `symbol_prefix`. Throws
/// NotSupported for what plan_contraction refuses and for epilogues it cannot express.
KernelCode emit_contraction(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                            std::string_view symbol_prefix);

}  // namespace ingot::codegen
