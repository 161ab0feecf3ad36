// Conversions between element types as LLVM IR, with PyTorch's results, on scalars and fixed
// vectors. Two representations: in memory every type has its width (reduced floats and bool as
// integers); in registers a reduced float is an f32 that holds a representable value, and a bool is
// an i1. Between 1 and 10 instructions a vector. Used by the emitters at loads, stores and
// `convert`.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include "codegen/llvm/math.h"
#include "ir/dtype.h"

namespace ingot::codegen {

/// The type of one element in memory (i8 for bool and f8, i16 for f16 and bf16) or in a register
/// (i1 for bool, float for reduced floats). Complex types have none and throw InternalError.
llvm::Type* memory_type(llvm::LLVMContext& context, DType dtype);
llvm::Type* register_type(llvm::LLVMContext& context, DType dtype);

/// A loaded value (memory type) as a register value. Exact.
llvm::Value* from_memory(MathContext& context, llvm::Value* value, DType dtype);

/// A register value as it is stored. Of a reduced float only a value rounded by `round_to` or
/// `convert` may be passed with `rounded` set; otherwise it is rounded to nearest even here.
llvm::Value* to_memory(MathContext& context, llvm::Value* value, DType dtype, bool rounded = false);

/// Rounds an f32 to the nearest value of a reduced float type, ties to even, overflow as PyTorch's
/// conversion (f8e4m3: NaN, others: infinity); other types are returned unchanged.
llvm::Value* round_to(MathContext& context, llvm::Value* value, DType dtype);

/// Converts a register value of type `from` to one of type `to` as PyTorch's `to` does: floats to
/// integers towards zero (out of range and NaN: the smallest integer of 32 or 64 bits, then cut),
/// anything to bool by comparison with 0, integers wrap.
llvm::Value* convert(MathContext& context, llvm::Value* value, DType from, DType to);

}  // namespace ingot::codegen
