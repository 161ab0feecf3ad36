// What code generation decides by the numbers of a kernel: lanes, tiles, blocks, what is packed.
// Two kernels of one structure and equal choices run the same instructions, addresses aside.
#pragma once
#include <string>

#include "codegen/llvm/target.h"
#include "schedule/nest.h"

namespace ingot::codegen {

std::string choices_of(const Kernel& kernel, const TargetInfo& target);

}  // namespace ingot::codegen
