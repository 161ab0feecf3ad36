// Shorthand for writing arithmetic on IR values, shared by the math functions. Internal to them.
#pragma once
#include <llvm/IR/Constants.h>
#include <llvm/IR/DerivedTypes.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <cstdint>
#include <span>

#include "codegen/llvm/math.h"

namespace ingot::codegen {

using Value = llvm::Value*;

/// Operations on values of one floating-point type (a scalar or a vector) and the integers of the
/// same shape. Constants are splat. The builder's fast-math flags are off while this lives.
class MathOps {
  public:
    MathOps(MathContext& context, llvm::Type* type)
        : b(context.b), target(context.target), type_(type), guard_(context.b) {
        b.clearFastMathFlags();
        llvm::Type* bits = b.getIntNTy(element()->getPrimitiveSizeInBits());
        int_type_ = lanes() ? llvm::FixedVectorType::get(bits, lanes()) : bits;
    }

    llvm::IRBuilder<>& b;
    const TargetInfo& target;

    llvm::Type* type() const { return type_; }
    llvm::Type* int_type() const { return int_type_; }
    llvm::Type* element() const { return type_->getScalarType(); }
    bool is_f32() const { return element()->isFloatTy(); }
    /// Vector lanes; 0 for a scalar.
    unsigned lanes() const {
        const auto* v = llvm::dyn_cast<llvm::FixedVectorType>(type_);
        return v ? v->getNumElements() : 0;
    }
    /// Bits of the whole value.
    unsigned bits() const {
        return static_cast<unsigned>(element()->getPrimitiveSizeInBits()) * (lanes() ? lanes() : 1);
    }

    Value c(double value) const { return llvm::ConstantFP::get(type_, value); }
    Value inf() const { return llvm::ConstantFP::getInfinity(type_); }
    Value nan() const { return llvm::ConstantFP::getQNaN(type_); }
    Value i(std::int64_t value) const {
        return llvm::ConstantInt::get(int_type_, static_cast<std::uint64_t>(value), true);
    }

    Value add(Value x, Value y) { return b.CreateFAdd(x, y); }
    Value sub(Value x, Value y) { return b.CreateFSub(x, y); }
    Value mul(Value x, Value y) { return b.CreateFMul(x, y); }
    Value div(Value x, Value y) { return b.CreateFDiv(x, y); }
    /// On GPUs at most 2 ulp in fp32 and much quicker.
    Value quick_div(Value x, Value y);
    /// 1 / x in fp32 by the GPU's instruction, 1 ulp; 0 for infinities.
    Value reciprocal_of_gpu(Value x);
    /// 2^x in fp32 by the GPU's instruction, 2 ulp; subnormal results are 0.
    Value exp2_of_gpu(Value x);
    Value neg(Value x) { return b.CreateFNeg(x); }
    Value fma(Value x, Value y, Value z) {
        return b.CreateIntrinsic(llvm::Intrinsic::fma, {type_}, {x, y, z});
    }
    /// z - x*y
    Value fnma(Value x, Value y, Value z) { return fma(x, neg(y), z); }
    Value sqrt(Value x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x); }
    Value abs(Value x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
    Value copysign(Value magnitude, Value sign) {
        return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, magnitude, sign);
    }
    Value trunc(Value x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, x); }
    Value rint(Value x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::rint, x); }
    Value select(Value mask, Value x, Value y) { return b.CreateSelect(mask, x, y); }
    Value lt(Value x, Value y) { return b.CreateFCmpOLT(x, y); }
    Value gt(Value x, Value y) { return b.CreateFCmpOGT(x, y); }
    Value le(Value x, Value y) { return b.CreateFCmpOLE(x, y); }
    Value ge(Value x, Value y) { return b.CreateFCmpOGE(x, y); }
    Value eq(Value x, Value y) { return b.CreateFCmpOEQ(x, y); }
    Value is_nan(Value x) { return b.CreateFCmpUNO(x, x); }
    /// min/max with a constant bound; a NaN in x stays.
    Value at_most(Value x, double bound) { return select(lt(c(bound), x), c(bound), x); }
    Value at_least(Value x, double bound) { return select(gt(c(bound), x), c(bound), x); }

    Value to_bits(Value x) { return b.CreateBitCast(x, int_type_); }
    Value from_bits(Value x) { return b.CreateBitCast(x, type_); }

    /// Horner's rule; coefficients lowest power first.
    Value poly(Value x, std::span<const double> coefficients) {
        Value y = c(coefficients.back());
        for (std::size_t k = coefficients.size() - 1; k-- > 0;) y = fma(y, x, c(coefficients[k]));
        return y;
    }

    /// y * 2^n for integral n held as floating point, |n| < 2^22; overflow and gradual underflow as
    /// ldexp. One instruction on AVX-512.
    Value scale(Value y, Value n);

    /// A run of the same computation on parts no wider than `part_lanes`: splits the operands,
    /// joins the results.
    static Value in_parts(llvm::IRBuilder<>& b, std::span<const Value> operands,
                          unsigned part_lanes,
                          llvm::function_ref<Value(std::span<const Value>)> compute);

  private:
    llvm::Type* type_;
    llvm::Type* int_type_;
    llvm::IRBuilder<>::FastMathFlagGuard guard_;
};

/// Whether `fn` has code in its operand's own precision: Exp, Log, Tanh, Erf, and the trigonometric
/// ones.
bool has_direct(MathFn fn, const llvm::Type* element, const TargetInfo& target);
/// Exp, Log, Tanh and Erf; null for others.
Value emit_direct(MathContext& context, MathFn fn, Value x);
/// See MathContext::quick; null if `fn` has no such form.
Value emit_quick(MathContext& context, MathFn fn, Value x);
/// Sin, Cos and (f32 only) Tan, of vectors of any width; may append basic blocks.
Value emit_trigonometric(MathContext& context, MathFn fn, Value x);
bool is_trigonometric(MathFn fn);

/// f32 functions on operands widened to f64: good to about 2^-34, which rounds to an almost
/// correctly rounded f32. Null when `fn` has no such form.
Value emit_via_f64(MathContext& context, MathFn fn, std::span<const Value> x);
bool has_via_f64(MathFn fn);

/// x = quadrant * pi/2 + rest, |rest| <= pi/4, in f64; the quadrant is an integer whose low two
/// bits count.
struct TurnRest {
    Value quadrant;
    Value rest;
};
/// For f32 values below 2^30 (the rest keeps 2^-50 absolute).
TurnRest reduce_f64(MathOps& m, Value x);
/// For f32 values of 2^15 and more, infinities and NaN: 192 bits of 2/pi in integer arithmetic
/// (Payne and Hanek). Slow.
TurnRest reduce_huge(MathContext& context, MathOps& m, Value x);
/// cos of the rest with square s.
Value cos_of_rest_f64(MathOps& m, Value s);
/// sin(turn + quarter_turns * pi/2)
Value sine_of_turn_f64(MathOps& m, const TurnRest& turn, int quarter_turns);
Value tan_of_turn_f64(MathOps& m, const TurnRest& turn);

}  // namespace ingot::codegen
