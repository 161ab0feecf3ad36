// Prims of integers and bool; see emit_prims.h. Integers wrap; a division by zero gives 0 and sets
// the error flag instead of trapping.
#include <string>

#include "codegen/compiled.h"
#include "codegen/llvm/emit_philox.h"
#include "codegen/llvm/emit_prims.h"

namespace ingot::codegen {

namespace {

class IntPrims {
  public:
    IntPrims(EmitContext& c, const PrimCall& call)
        : c_(c),
          b(c.b),
          call_(call),
          type_(call.operands[0].re->getType()),
          bits_(type_->getScalarSizeInBits()),
          signed_(is_signed_int(call.operand)) {}

    Lanes run() {
        IrValue x = call_.operands[0].re;
        IrValue r = call_.operands.size() == 1 ? unary(x) : nary(x, call_.operands[1].re);
        return {r};
    }

  private:
    bool is_bool() const { return bits_ == 1; }
    IrValue num(std::int64_t v) const {
        return llvm::ConstantInt::get(type_, static_cast<std::uint64_t>(v), true);
    }
    IrValue sel(IrValue m, IrValue x, IrValue y) { return b.CreateSelect(m, x, y); }
    IrValue less(IrValue x, IrValue y) {
        return signed_ ? b.CreateICmpSLT(x, y) : b.CreateICmpULT(x, y);
    }
    IrValue negative(IrValue x) { return b.CreateICmpSLT(x, num(0)); }

    IrValue unary(IrValue x) {
        switch (call_.prim) {
            case Prim::Abs:
                return signed_ ? sel(negative(x), b.CreateNeg(x), x) : x;
            case Prim::BitwiseNot:
                return b.CreateNot(x);
            case Prim::Neg:
                return b.CreateNeg(x);
            case Prim::Sign:
                if (!signed_) return is_bool() ? x : b.CreateZExt(b.CreateICmpNE(x, num(0)), type_);
                return b.CreateSub(b.CreateZExt(b.CreateICmpSGT(x, num(0)), type_),
                                   b.CreateZExt(negative(x), type_));
            case Prim::Signbit:
                return signed_ ? negative(x)
                               : llvm::Constant::getNullValue(shaped_as(b.getInt1Ty(), x));
            case Prim::Relu:
                return signed_ ? sel(negative(x), num(0), x) : x;
            case Prim::Popcount:
                return is_bool() ? x : b.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, x);
            case Prim::Ceil:
            case Prim::Floor:
            case Prim::Trunc:
            case Prim::Round:
            case Prim::Conj:
            case Prim::Round2:
            case Prim::Real:
                return x;
            case Prim::Imag:
                return num(0);
            case Prim::IsFinite:
                return llvm::Constant::getAllOnesValue(shaped_as(b.getInt1Ty(), x));
            case Prim::IsInf:
            case Prim::IsNan:
                return llvm::Constant::getNullValue(shaped_as(b.getInt1Ty(), x));
            default:
                return nullptr;
        }
    }

    IrValue nary(IrValue x, IrValue y) {
        switch (call_.prim) {
            case Prim::Add:
                return is_bool() ? b.CreateOr(x, y) : b.CreateAdd(x, y);
            case Prim::Sub:
                return b.CreateSub(x, y);  // of i1: exclusive or
            case Prim::Mul:
                return is_bool() ? b.CreateAnd(x, y) : b.CreateMul(x, y);
            case Prim::TruncDiv:
            case Prim::FloorDiv:
            case Prim::Fmod:
            case Prim::Remainder:
                return division(x, y);
            case Prim::Pow:
                return runtime_call("pow", x, y);
            case Prim::Gcd:
                return runtime_call("gcd", x, y);
            case Prim::Lcm:
                return runtime_call("lcm", x, y);
            case Prim::Maximum:
            case Prim::Fmax:
                return emit_extremum(b, x, y, true, signed_);
            case Prim::Minimum:
            case Prim::Fmin:
                return emit_extremum(b, x, y, false, signed_);
            case Prim::BitwiseAnd:
                return b.CreateAnd(x, y);
            case Prim::BitwiseOr:
                return b.CreateOr(x, y);
            case Prim::BitwiseXor:
                return b.CreateXor(x, y);
            case Prim::ShiftLeft:
                return is_bool() ? nullptr : shift(x, y, true);
            case Prim::ShiftRight:
                return is_bool() ? nullptr : shift(x, y, false);
            case Prim::Eq:
                return b.CreateICmpEQ(x, y);
            case Prim::Ne:
                return b.CreateICmpNE(x, y);
            case Prim::Lt:
                return less(x, y);
            case Prim::Le:
                return b.CreateNot(less(y, x));
            case Prim::Gt:
                return less(y, x);
            case Prim::Ge:
                return b.CreateNot(less(x, y));
            case Prim::Fma: {
                IrValue z = call_.operands[2].re;
                return is_bool() ? b.CreateOr(b.CreateAnd(x, y), z)
                                 : b.CreateAdd(b.CreateMul(x, y), z);
            }
            case Prim::Philox:
                if (bits_ != 64) return nullptr;
                return emit_philox(b, x, y, call_.operands[2].re,
                                   PhiloxLayout::unpacked(call_.imm));
            case Prim::Clamp:
                return emit_extremum(b, emit_extremum(b, x, y, true, signed_), call_.operands[2].re,
                                     false, signed_);
            default:
                return nullptr;
        }
    }

    // Out of range (negative amounts too): zero, or the sign for arithmetic shifts to the right.
    IrValue shift(IrValue x, IrValue y, bool left) {
        IrValue top = num(static_cast<std::int64_t>(bits_) - 1);
        IrValue outside = b.CreateICmpUGT(y, top);
        if (left) return sel(outside, num(0), b.CreateShl(x, sel(outside, num(0), y)));
        if (signed_) return b.CreateAShr(x, sel(outside, top, y));
        return sel(outside, num(0), b.CreateLShr(x, sel(outside, num(0), y)));
    }

    /// Quotient towards zero for a divisor that is neither 0 nor (signed) -1. Narrow vectors divide
    /// in f64, which is exact for 32-bit numbers; x86 has no vector division of integers.
    IrValue quotient(IrValue x, IrValue y) {
        if (lanes_of(x) && bits_ <= 32 && !llvm::isa<llvm::Constant>(y)) {
            llvm::Type* f64 = shaped_as(b.getDoubleTy(), x);
            llvm::Type* i64 = shaped_as(b.getInt64Ty(), x);
            if (signed_) {
                IrValue q = b.CreateFDiv(b.CreateSIToFP(x, f64), b.CreateSIToFP(y, f64));
                return b.CreateTrunc(b.CreateFPToSI(q, shaped_as(b.getInt32Ty(), x)), type_);
            }
            IrValue q = b.CreateFDiv(b.CreateUIToFP(x, f64), b.CreateUIToFP(y, f64));
            return b.CreateTrunc(b.CreateFPToSI(q, i64), type_);
        }
        return signed_ ? b.CreateSDiv(x, y) : b.CreateUDiv(x, y);
    }

    IrValue division(IrValue x, IrValue y) {
        if (is_bool()) return nullptr;
        IrValue zero = b.CreateICmpEQ(y, num(0));
        flag_error(c_, zero, call_.active, kDivisionByZero);
        IrValue minus_one = signed_ ? b.CreateICmpEQ(y, num(-1)) : nullptr;
        IrValue guarded = sel(minus_one ? b.CreateOr(zero, minus_one) : zero, num(1), y);
        IrValue q = quotient(x, guarded);
        if (minus_one) q = sel(minus_one, b.CreateNeg(x), q);
        q = sel(zero, num(0), q);
        if (call_.prim == Prim::TruncDiv) return q;
        IrValue r = sel(zero, num(0), b.CreateSub(x, b.CreateMul(q, y)));
        if (call_.prim == Prim::Fmod) return r;
        if (!signed_) return call_.prim == Prim::FloorDiv ? q : r;
        IrValue opposite = b.CreateAnd(b.CreateICmpNE(r, num(0)), negative(b.CreateXor(r, y)));
        return call_.prim == Prim::FloorDiv ? b.CreateAdd(q, b.CreateSExt(opposite, type_))
                                            : sel(opposite, b.CreateAdd(r, y), r);
    }

    /// Through a 64-bit function of special.h.
    IrValue runtime_call(const char* function, IrValue x, IrValue y) {
        if (is_bool()) return nullptr;
        llvm::Type* i64 = shaped_as(b.getInt64Ty(), x);
        auto widen = [&](IrValue v) {
            return signed_ ? b.CreateSExt(v, i64) : b.CreateZExt(v, i64);
        };
        const std::string symbol =
            std::string("ingot_special_") + function + (signed_ ? "_i64" : "_u64");
        const IrValue operands[] = {widen(x), widen(y)};
        return b.CreateTrunc(emit_array_call(c_, symbol, operands, b.getInt64Ty(), 1).re, type_);
    }

    EmitContext& c_;
    llvm::IRBuilder<>& b;
    const PrimCall& call_;
    llvm::Type* type_;
    unsigned bits_;
    bool signed_;
};

}  // namespace

Lanes emit_int_prim(EmitContext& c, const PrimCall& call) { return IntPrims(c, call).run(); }

}  // namespace ingot::codegen
