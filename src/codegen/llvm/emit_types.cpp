// Register and memory forms of elements; see emit_types.h.
#include "codegen/llvm/emit_types.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/DerivedTypes.h>
#include <llvm/IR/Intrinsics.h>

#include "codegen/llvm/convert.h"
#include "ir/error.h"

namespace ingot::codegen {

llvm::Type* lane_type(llvm::LLVMContext& context, DType t) {
    return register_type(context, real_type(t));
}

llvm::Type* storage_type(llvm::LLVMContext& context, DType t) {
    return memory_type(context, real_type(t));
}

llvm::Type* with_lanes(llvm::Type* element, unsigned lanes) {
    return lanes > 1 ? llvm::FixedVectorType::get(element, lanes) : element;
}

unsigned lanes_of(IrValue v) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    return type ? type->getNumElements() : 0;
}

llvm::Type* shaped_as(llvm::Type* element, IrValue like) {
    return lanes_of(like) ? llvm::FixedVectorType::get(element, lanes_of(like)) : element;
}

IrValue splat(llvm::IRBuilder<>& b, IrValue v, unsigned lanes) {
    if (lanes <= 1 || v->getType()->isVectorTy()) return v;
    return b.CreateVectorSplat(lanes, v);
}

Lanes splat(llvm::IRBuilder<>& b, Lanes v, unsigned lanes) {
    return {splat(b, v.re, lanes), v.im ? splat(b, v.im, lanes) : nullptr};
}

Lanes constant(llvm::LLVMContext& context, DType t, const Scalar& value) {
    llvm::Type* type = lane_type(context, t);
    if (is_complex(t)) {
        const std::complex<double> z = value.to_complex();
        return {llvm::ConstantFP::get(type, z.real()), llvm::ConstantFP::get(type, z.imag())};
    }
    if (is_float(t)) return {llvm::ConstantFP::get(type, value.to_double())};
    if (t == DType::Bool) return {llvm::ConstantInt::get(type, value.to_double() != 0.0)};
    return {llvm::ConstantInt::get(type, static_cast<std::uint64_t>(value.to_int()), true)};
}

// ---- conversions --------------------------------------------------------------------------------

IrValue from_storage(EmitContext& c, DType t, IrValue stored) {
    MathContext m{c.b, c.target};
    return is_complex(t) ? stored : from_memory(m, stored, t);
}

IrValue to_storage(EmitContext& c, DType t, IrValue value) {
    MathContext m{c.b, c.target};
    return is_complex(t) ? value : to_memory(m, value, t);
}

Lanes round_to(EmitContext& c, DType t, Lanes value) {
    if (!is_reduced_float(t)) return value;
    MathContext m{c.b, c.target};
    return {round_to(m, value.re, t)};
}

IrValue truth(EmitContext& c, DType t, Lanes value) {
    if (t == DType::Bool) return value.re;
    auto nonzero = [&](IrValue v) {
        llvm::Constant* zero = llvm::Constant::getNullValue(v->getType());
        return v->getType()->isFPOrFPVectorTy() ? c.b.CreateFCmpUNE(v, zero)
                                                : c.b.CreateICmpNE(v, zero);
    };
    IrValue r = nonzero(value.re);
    return value.im ? c.b.CreateOr(r, nonzero(value.im)) : r;
}

Lanes convert(EmitContext& c, DType from, DType to, Lanes value) {
    llvm::IRBuilder<>& b = c.b;
    if (to == DType::Bool) return {truth(c, from, value)};
    if (is_complex(to)) {
        Lanes re = convert(c, real_type(from), real_type(to), {value.re});
        IrValue im = value.im ? convert(c, real_type(from), real_type(to), {value.im}).re
                              : llvm::Constant::getNullValue(re.re->getType());
        return {re.re, im};
    }
    MathContext m{b, c.target};
    return {convert(m, value.re, real_type(from), to)};
}

Lanes bitcast(EmitContext& c, DType from, DType to, Lanes value) {
    llvm::IRBuilder<>& b = c.b;
    check(bytes(from) == bytes(to), "bitcast between widths");
    if (from == to) return value;
    if (from == DType::C64 && !is_complex(to)) {  // two f32 as one 64-bit number
        llvm::Type* i32 = shaped_as(b.getInt32Ty(), value.re);
        llvm::Type* i64 = shaped_as(b.getInt64Ty(), value.re);
        IrValue low = b.CreateZExt(b.CreateBitCast(value.re, i32), i64);
        IrValue high = b.CreateZExt(b.CreateBitCast(value.im, i32), i64);
        IrValue bits = b.CreateOr(low, b.CreateShl(high, llvm::ConstantInt::get(i64, 32)));
        return {b.CreateBitCast(bits, shaped_as(storage_type(b.getContext(), to), value.re))};
    }
    if (to == DType::C64) {
        llvm::Type* i32 = shaped_as(b.getInt32Ty(), value.re);
        llvm::Type* i64 = shaped_as(b.getInt64Ty(), value.re);
        llvm::Type* f32 = shaped_as(b.getFloatTy(), value.re);
        IrValue bits = b.CreateBitCast(value.re, i64);
        IrValue high = b.CreateLShr(bits, llvm::ConstantInt::get(i64, 32));
        return {b.CreateBitCast(b.CreateTrunc(bits, i32), f32),
                b.CreateBitCast(b.CreateTrunc(high, i32), f32)};
    }
    check(!is_complex(from) && !is_complex(to), "bitcast of this complex type");
    IrValue stored = to_storage(c, from, value.re);
    llvm::Type* type = shaped_as(storage_type(b.getContext(), to), value.re);
    return {from_storage(c, to, b.CreateBitCast(stored, type))};
}

void flag_error(EmitContext& c, IrValue condition, IrValue active, std::int64_t code) {
    llvm::IRBuilder<>& b = c.b;
    if (auto* known = llvm::dyn_cast<llvm::Constant>(condition); known && known->isNullValue())
        return;
    if (active && condition->getType()->isVectorTy()) condition = b.CreateAnd(condition, active);
    if (condition->getType()->isVectorTy()) condition = b.CreateOrReduce(condition);
    llvm::Function* function = b.GetInsertBlock()->getParent();
    auto* bad = llvm::BasicBlock::Create(b.getContext(), "error", function);
    auto* good = llvm::BasicBlock::Create(b.getContext(), "good", function);
    b.CreateCondBr(condition, bad, good);
    b.SetInsertPoint(bad);
    b.CreateStore(b.getInt64(static_cast<std::uint64_t>(code)), c.error);
    b.CreateBr(good);
    b.SetInsertPoint(good);
}

}  // namespace ingot::codegen
