// Prims of real floating-point types; see emit_prims.h. Formulas are eager's.
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "codegen/llvm/emit_prims.h"
#include "codegen/llvm/math.h"
#include "codegen/llvm/math_ops.h"

namespace ingot::codegen {

namespace {

std::optional<MathFn> math_fn(Prim prim) {
    switch (prim) {
        case Prim::Sqrt:
            return MathFn::Sqrt;
        case Prim::Rsqrt:
            return MathFn::Rsqrt;
        case Prim::Cbrt:
            return MathFn::Cbrt;
        case Prim::Exp:
            return MathFn::Exp;
        case Prim::Exp2:
            return MathFn::Exp2;
        case Prim::Expm1:
            return MathFn::Expm1;
        case Prim::Log:
            return MathFn::Log;
        case Prim::Log2:
            return MathFn::Log2;
        case Prim::Log10:
            return MathFn::Log10;
        case Prim::Log1p:
            return MathFn::Log1p;
        case Prim::Sin:
            return MathFn::Sin;
        case Prim::Cos:
            return MathFn::Cos;
        case Prim::Tan:
            return MathFn::Tan;
        case Prim::Asin:
            return MathFn::Asin;
        case Prim::Acos:
            return MathFn::Acos;
        case Prim::Atan:
            return MathFn::Atan;
        case Prim::Sinh:
            return MathFn::Sinh;
        case Prim::Cosh:
            return MathFn::Cosh;
        case Prim::Tanh:
            return MathFn::Tanh;
        case Prim::Asinh:
            return MathFn::Asinh;
        case Prim::Acosh:
            return MathFn::Acosh;
        case Prim::Atanh:
            return MathFn::Atanh;
        case Prim::Erf:
            return MathFn::Erf;
        case Prim::Erfc:
            return MathFn::Erfc;
        case Prim::Erfinv:
            return MathFn::Erfinv;
        case Prim::Sigmoid:
            return MathFn::Sigmoid;
        case Prim::Lgamma:
            return MathFn::Lgamma;
        case Prim::Digamma:
            return MathFn::Digamma;
        case Prim::Pow:
            return MathFn::Pow;
        case Prim::Atan2:
            return MathFn::Atan2;
        case Prim::Hypot:
            return MathFn::Hypot;
        case Prim::Fmod:
            return MathFn::Fmod;
        case Prim::Remainder:
            return MathFn::Remainder;
        default:
            return std::nullopt;
    }
}

/// Prims computed by a function of special.h, once a lane.
bool is_special(Prim prim) {
    switch (prim) {
        case Prim::BesselI0:
        case Prim::BesselI0e:
        case Prim::BesselI1:
        case Prim::BesselI1e:
        case Prim::BesselJ0:
        case Prim::BesselJ1:
        case Prim::BesselY0:
        case Prim::BesselY1:
        case Prim::ModifiedBesselK0:
        case Prim::ModifiedBesselK1:
        case Prim::SphericalBesselJ0:
        case Prim::Erfcx:
        case Prim::LogNdtr:
        case Prim::Ndtri:
        case Prim::Nextafter:
        case Prim::Igamma:
        case Prim::Igammac:
        case Prim::Zeta:
        case Prim::ChebyshevT:
        case Prim::ChebyshevU:
        case Prim::HermiteH:
        case Prim::LaguerreL:
        case Prim::LegendreP:
        case Prim::Polygamma:
            return true;
        default:
            return false;
    }
}

class FloatPrims {
  public:
    FloatPrims(EmitContext& c, const PrimCall& call)
        : c_(c), b(c.b), call_(call), type_(call.operands[0].re->getType()) {
        for (const Lanes& l : call.operands) x_.push_back(l.re);
    }

    Lanes run() {
        if (auto fn = math_fn(call_.prim)) return {math(*fn, x_)};
        if (is_special(call_.prim)) return {special()};
        if (IrValue r = x_.size() == 1 ? unary(x_[0]) : nary()) return {r};
        return {};
    }

  private:
    IrValue num(double v) const { return llvm::ConstantFP::get(type_, v); }
    IrValue sel(IrValue m, IrValue x, IrValue y) { return b.CreateSelect(m, x, y); }
    IrValue abs(IrValue x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
    IrValue trunc(IrValue x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, x); }
    IrValue rint(IrValue x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::rint, x); }
    IrValue floor(IrValue x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, x); }
    IrValue is_nan(IrValue x) { return b.CreateFCmpUNO(x, x); }
    IrValue copysign(IrValue x, IrValue s) {
        return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, x, s);
    }
    IrValue math(MathFn fn, std::vector<IrValue> operands) {
        MathContext m{b, c_.target, c_.quick_math};
        return emit_math(m, fn, operands);
    }

    IrValue quick_div(IrValue x, IrValue y) {
        MathContext m{b, c_.target};
        return MathOps(m, type_).quick_div(x, y);
    }

    // GPUs have an instruction for it that keeps NaN, from compute capability 8.0 on.
    IrValue extremum(IrValue x, IrValue y, bool maximum) {
        const bool instruction = c_.target.is_gpu() && type_->getScalarType()->isFloatTy() &&
                                 c_.target.gpu_capability() >= 80;
        if (!instruction) return emit_extremum(b, x, y, maximum, true);
        return b.CreateBinaryIntrinsic(
            maximum ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum, x, y);
    }

    IrValue special() {
        std::vector<IrValue> operands = x_;
        if (call_.prim == Prim::Polygamma)
            operands.insert(operands.begin(), num(static_cast<double>(call_.imm)));
        std::string symbol = "ingot_special_" + std::string(name(call_.prim));
        if (type_->getScalarType()->isFloatTy()) symbol += "_f32";
        return emit_array_call(c_, symbol, operands, type_->getScalarType(), 1).re;
    }

    IrValue unary(IrValue x) {
        switch (call_.prim) {
            case Prim::Abs:
                return abs(x);
            case Prim::Angle:
                return sel(is_nan(x), x,
                           sel(b.CreateFCmpOLT(x, num(0)), num(std::numbers::pi), num(0)));
            case Prim::Ceil:
                return b.CreateUnaryIntrinsic(llvm::Intrinsic::ceil, x);
            case Prim::Conj:
            case Prim::Real:
                return x;
            case Prim::Imag:
                return num(0);
            case Prim::Floor:
                return floor(x);
            case Prim::Frac:
                return b.CreateFSub(x, trunc(x));
            case Prim::IsFinite:
                return b.CreateFCmpOLT(abs(x), llvm::ConstantFP::getInfinity(type_));
            case Prim::IsInf:
                return b.CreateFCmpOEQ(abs(x), llvm::ConstantFP::getInfinity(type_));
            case Prim::IsNan:
                return is_nan(x);
            case Prim::Neg:
                return b.CreateFNeg(x);
            case Prim::Reciprocal:
                return b.CreateFDiv(num(1), x);
            case Prim::Relu:
                return sel(b.CreateFCmpOGT(num(0), x), num(0), x);
            case Prim::Round:
                return rint(x);
            case Prim::Sign: {
                IrValue up = b.CreateUIToFP(b.CreateFCmpOLT(num(0), x), type_);
                return b.CreateFSub(up, b.CreateUIToFP(b.CreateFCmpOLT(x, num(0)), type_));
            }
            case Prim::Signbit: {
                llvm::Type* bits =
                    shaped_as(b.getIntNTy(static_cast<unsigned>(type_->getScalarSizeInBits())), x);
                return b.CreateICmpSLT(b.CreateBitCast(x, bits), llvm::ConstantInt::get(bits, 0));
            }
            case Prim::Sinc: {
                IrValue t = b.CreateFMul(num(std::numbers::pi), x);
                IrValue y = b.CreateFDiv(math(MathFn::Sin, {t}), t);
                return sel(b.CreateFCmpOEQ(x, num(0)), num(1), y);
            }
            case Prim::Trunc:
                return trunc(x);
            case Prim::Round2:
                return round_decimals(x);
            default:
                return nullptr;
        }
    }

    IrValue round_decimals(IrValue x) {
        if (call_.imm == 0) return rint(x);
        const bool single = type_->getScalarType()->isFloatTy();
        const double power = std::pow(10.0, std::abs(static_cast<double>(call_.imm)));
        IrValue p = num(single ? static_cast<double>(static_cast<float>(power)) : power);
        return call_.imm < 0 ? b.CreateFMul(rint(b.CreateFDiv(x, p)), p)
                             : b.CreateFDiv(rint(b.CreateFMul(x, p)), p);
    }

    IrValue floor_div(IrValue x, IrValue y) {
        IrValue mod = math(MathFn::Fmod, {x, y});
        IrValue div = b.CreateFDiv(b.CreateFSub(x, mod), y);
        IrValue opposite = b.CreateXor(b.CreateFCmpOLT(y, num(0)), b.CreateFCmpOLT(mod, num(0)));
        IrValue below = b.CreateAnd(b.CreateFCmpUNE(mod, num(0)), opposite);
        div = sel(below, b.CreateFSub(div, num(1)), div);
        IrValue down = floor(div);
        IrValue far = b.CreateFCmpOGT(b.CreateFSub(div, down), num(0.5));
        IrValue r = sel(far, b.CreateFAdd(down, num(1)), down);
        IrValue quotient = b.CreateFDiv(x, y);
        r = sel(b.CreateFCmpOEQ(div, num(0)), copysign(num(0), quotient), r);
        return sel(b.CreateFCmpOEQ(y, num(0)), quotient, r);
    }

    /// x * f(y), 0 where x is 0, NaN where y is.
    IrValue x_times(MathFn fn, IrValue x, IrValue y) {
        IrValue r = b.CreateFMul(x, math(fn, {y}));
        r = sel(b.CreateFCmpOEQ(x, num(0)), num(0), r);
        return sel(is_nan(y), y, r);
    }

    IrValue nary() {
        IrValue x = x_[0], y = x_[1], z = x_.size() > 2 ? x_[2] : nullptr;
        switch (call_.prim) {
            case Prim::Add:
                return b.CreateFAdd(x, y);
            case Prim::Sub:
                return b.CreateFSub(x, y);
            case Prim::Mul:
                return b.CreateFMul(x, y);
            case Prim::Div:
                return c_.quick_math ? quick_div(x, y) : b.CreateFDiv(x, y);
            case Prim::TruncDiv:
                return trunc(b.CreateFDiv(x, y));
            case Prim::FloorDiv:
                return floor_div(x, y);
            case Prim::Copysign:
                return copysign(x, y);
            case Prim::Maximum:
                return extremum(x, y, true);
            case Prim::Minimum:
                return extremum(x, y, false);
            case Prim::Fmax:
                return sel(b.CreateOr(b.CreateFCmpOLT(x, y), is_nan(x)), y, x);
            case Prim::Fmin:
                return sel(b.CreateOr(b.CreateFCmpOLT(y, x), is_nan(x)), y, x);
            case Prim::Xlogy:
                return x_times(MathFn::Log, x, y);
            case Prim::Xlog1py:
                return x_times(MathFn::Log1p, x, y);
            case Prim::Eq:
                return b.CreateFCmpOEQ(x, y);
            case Prim::Ne:
                return b.CreateFCmpUNE(x, y);
            case Prim::Lt:
                return b.CreateFCmpOLT(x, y);
            case Prim::Le:
                return b.CreateFCmpOLE(x, y);
            case Prim::Gt:
                return b.CreateFCmpOGT(x, y);
            case Prim::Ge:
                return b.CreateFCmpOGE(x, y);
            case Prim::Fma:
                return b.CreateIntrinsic(llvm::Intrinsic::fma, {type_}, {x, y, z});
            case Prim::Clamp:
                return extremum(extremum(x, y, true), z, false);
            case Prim::Lerp: {
                IrValue span = b.CreateFSub(y, x);
                IrValue low = b.CreateFAdd(x, b.CreateFMul(z, span));
                IrValue high = b.CreateFSub(y, b.CreateFMul(span, b.CreateFSub(num(1), z)));
                return sel(b.CreateFCmpOLT(abs(z), num(0.5)), low, high);
            }
            default:
                return nullptr;
        }
    }

    EmitContext& c_;
    llvm::IRBuilder<>& b;
    const PrimCall& call_;
    llvm::Type* type_;
    std::vector<IrValue> x_;
};

}  // namespace

Lanes emit_float_prim(EmitContext& c, const PrimCall& call) { return FloatPrims(c, call).run(); }

}  // namespace ingot::codegen
