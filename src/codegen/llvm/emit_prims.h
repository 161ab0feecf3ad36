// Pointwise prims as LLVM IR on registers, for every element type. Arithmetic follows eager: no
// fused multiply-add across prims, integers wrap, NaN as PyTorch has it, integer division by zero
// sets the kernel's error flag (eager raises; the host then runs eager). Used by the bodies of loop
// nests and by contractions' epilogues.
#pragma once
#include <span>

#include "codegen/llvm/emit_types.h"
#include "ir/prim.h"

namespace ingot::codegen {

struct PrimCall {
    Prim prim = Prim::Add;
    DType result = DType::F32;
    DType operand = DType::F32;       // element type of the operands (Select: of the last two)
    std::span<const Lanes> operands;  // all uniform, or all of the same number of lanes
    std::int64_t imm = 0;             // decimals, order, layout
    IrValue active = nullptr;         // lanes whose errors count; null: all
};

/// The prim's result. Reduced floats arrive and leave as f32, not rounded. May add basic blocks.
/// Throws NotSupported for prims and types that have no code.
Lanes emit_prim(EmitContext& c, const PrimCall& call);

/// Relative cost of a prim at one point, in simple instructions; for grain sizes and unrolling.
int prim_cost(Prim prim, DType operand);

// The parts by class of type; a part returns an empty Lanes for prims it does not know.
Lanes emit_float_prim(EmitContext& c, const PrimCall& call);
Lanes emit_int_prim(EmitContext& c, const PrimCall& call);
Lanes emit_complex_prim(EmitContext& c, const PrimCall& call);

/// Calls `symbol`, a function of special.h, on whole arrays of lanes: operands (complex ones as two
/// arrays) are passed through the stack. `parts`: how many arrays the result has.
Lanes emit_array_call(EmitContext& c, std::string_view symbol, std::span<const IrValue> operands,
                      llvm::Type* result_element, unsigned parts);

/// NaN-propagating maximum or minimum of numbers; `maximum` says which.
IrValue emit_extremum(llvm::IRBuilder<>& b, IrValue x, IrValue y, bool maximum, bool is_signed);

}  // namespace ingot::codegen
