// Elements in registers and in memory. In registers a bool is i1, reduced floats are f32, complex
// numbers are two values; in memory a bool is a byte, reduced floats are integers of their width,
// complex numbers are pairs. A thin layer over convert.h that knows complex numbers. Everything
// here works on scalars and on fixed vectors alike. First layer of the emitters; knows nothing of
// loops. A few instructions a call.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include "codegen/llvm/target.h"
#include "ir/dtype.h"
#include "ir/graph.h"

namespace ingot::codegen {

using IrValue = llvm::Value*;

/// A number, or one number a lane: `re` is a scalar (uniform) or a fixed vector; `im` is set for
/// complex types only.
struct Lanes {
    IrValue re = nullptr;
    IrValue im = nullptr;
    bool varying() const { return re->getType()->isVectorTy(); }
};

/// What the emitters share: where instructions go, for which machine.
struct EmitContext {
    llvm::IRBuilder<>& b;
    const TargetInfo& target;
    IrValue error = nullptr;  // pointer to the kernel's error flag
    bool quick_math = false;  // fp32 by a GPU's quick instructions, where results have fewer bits
};

/// Type of one lane in a register (of one part of a complex number).
llvm::Type* lane_type(llvm::LLVMContext& context, DType t);
/// Type of one element in memory (of one part of a complex number).
llvm::Type* storage_type(llvm::LLVMContext& context, DType t);
/// `element` itself for 0 or 1 lanes, else a vector of it.
llvm::Type* with_lanes(llvm::Type* element, unsigned lanes);
/// Lanes of a value; 0 for scalars.
unsigned lanes_of(IrValue v);
/// The scalar `element`, or a vector of it shaped as `like`.
llvm::Type* shaped_as(llvm::Type* element, IrValue like);

IrValue splat(llvm::IRBuilder<>& b, IrValue v, unsigned lanes);
/// Every part repeated over `lanes` lanes if it is uniform (lanes > 1).
Lanes splat(llvm::IRBuilder<>& b, Lanes v, unsigned lanes);

/// `value` as a number of type `t`, a scalar.
Lanes constant(llvm::LLVMContext& context, DType t, const Scalar& value);

/// One part of an element from its memory form to its register form, and back (rounding).
IrValue from_storage(EmitContext& c, DType t, IrValue stored);
IrValue to_storage(EmitContext& c, DType t, IrValue value);
/// A reduced float (held as f32) rounded to its type; other values unchanged.
Lanes round_to(EmitContext& c, DType t, Lanes value);

/// PyTorch's `to`.
Lanes convert(EmitContext& c, DType from, DType to, Lanes value);
/// The same bits as another type of equal width.
Lanes bitcast(EmitContext& c, DType from, DType to, Lanes value);
/// value != 0, as i1.
IrValue truth(EmitContext& c, DType t, Lanes value);

/// Sets the kernel's error flag to `code` if `condition` (i1 or a vector of it) holds in any lane
/// where `active` (may be null) does. Adds basic blocks.
void flag_error(EmitContext& c, IrValue condition, IrValue active, std::int64_t code);

}  // namespace ingot::codegen
