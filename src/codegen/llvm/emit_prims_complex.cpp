// Prims of complex types; see emit_prims.h. Arithmetic is inline, transcendental functions call
// std::complex's through special.h.
#include <string>
#include <vector>

#include "codegen/llvm/emit_prims.h"
#include "codegen/llvm/math.h"

namespace ingot::codegen {

namespace {

class ComplexPrims {
  public:
    ComplexPrims(EmitContext& c, const PrimCall& call)
        : c_(c), b(c.b), call_(call), type_(call.operands[0].re->getType()) {}

    Lanes run() {
        const Lanes& x = call_.operands[0];
        return call_.operands.size() == 1 ? unary(x) : nary(x, call_.operands[1]);
    }

  private:
    IrValue num(double v) const { return llvm::ConstantFP::get(type_, v); }
    IrValue abs(IrValue x) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
    IrValue is_nan(IrValue x) { return b.CreateFCmpUNO(x, x); }
    IrValue math(MathFn fn, std::vector<IrValue> operands) {
        MathContext m{b, c_.target};
        return emit_math(m, fn, operands);
    }

    Lanes library() {
        std::vector<IrValue> parts;
        for (const Lanes& l : call_.operands) {
            parts.push_back(l.re);
            parts.push_back(l.im);
        }
        std::string symbol = "ingot_complex_" + std::string(name(call_.prim));
        if (type_->getScalarType()->isFloatTy()) symbol += "_f32";
        return emit_array_call(c_, symbol, parts, type_->getScalarType(), 2);
    }

    Lanes mul(const Lanes& x, const Lanes& y) {
        return {b.CreateFSub(b.CreateFMul(x.re, y.re), b.CreateFMul(x.im, y.im)),
                b.CreateFAdd(b.CreateFMul(x.re, y.im), b.CreateFMul(x.im, y.re))};
    }

    /// Smith-like scaling by the divisor's larger part, as eager's vector code does.
    Lanes div(const Lanes& x, const Lanes& y) {
        IrValue a = abs(y.re), d = abs(y.im);
        IrValue scale = b.CreateSelect(b.CreateFCmpOLT(a, d), d, a);
        IrValue c = b.CreateFDiv(y.re, scale), s = b.CreateFDiv(y.im, scale);
        IrValue p = b.CreateFDiv(x.re, scale), q = b.CreateFDiv(x.im, scale);
        IrValue norm = b.CreateFAdd(b.CreateFMul(c, c), b.CreateFMul(s, s));
        IrValue re = b.CreateFAdd(b.CreateFMul(p, c), b.CreateFMul(q, s));
        IrValue im = b.CreateFSub(b.CreateFMul(q, c), b.CreateFMul(p, s));
        return {b.CreateFDiv(re, norm), b.CreateFDiv(im, norm)};
    }

    /// As PyTorch's complex numbers are divided: by the ratio of the divisor's parts (Smith 1962),
    /// and part by part where both are zero, which gives infinities.
    Lanes quotient(const Lanes& x, const Lanes& y) {
        IrValue c = abs(y.re), d = abs(y.im);
        IrValue first = b.CreateFCmpOGE(c, d);
        IrValue large = b.CreateSelect(first, y.re, y.im),
                small = b.CreateSelect(first, y.im, y.re);
        IrValue p = b.CreateSelect(first, x.re, x.im), q = b.CreateSelect(first, x.im, x.re);
        IrValue ratio = b.CreateFDiv(small, large);
        IrValue scale = b.CreateFDiv(num(1), b.CreateFAdd(large, b.CreateFMul(small, ratio)));
        IrValue t = b.CreateFMul(p, ratio);
        IrValue im = b.CreateSelect(first, b.CreateFSub(q, t), b.CreateFSub(t, q));
        IrValue zero = b.CreateAnd(b.CreateFCmpOEQ(c, num(0)), b.CreateFCmpOEQ(d, num(0)));
        IrValue re = b.CreateFMul(b.CreateFAdd(p, b.CreateFMul(q, ratio)), scale);
        return {b.CreateSelect(zero, b.CreateFDiv(x.re, c), re),
                b.CreateSelect(zero, b.CreateFDiv(x.im, d), b.CreateFMul(im, scale))};
    }

    Lanes unary(const Lanes& x) {
        switch (call_.prim) {
            case Prim::Abs:
                return {math(MathFn::Hypot, {x.re, x.im})};
            case Prim::Angle:
                return {math(MathFn::Atan2, {x.im, x.re})};
            case Prim::Conj:
                return {x.re, b.CreateFNeg(x.im)};
            case Prim::Real:
                return {x.re};
            case Prim::Imag:
                return {x.im};
            case Prim::Neg:
                return {b.CreateFNeg(x.re), b.CreateFNeg(x.im)};
            case Prim::Reciprocal:
                return div({num(1), num(0)}, x);
            case Prim::IsNan:
                return {b.CreateOr(is_nan(x.re), is_nan(x.im))};
            case Prim::IsInf: {
                IrValue inf = llvm::ConstantFP::getInfinity(type_);
                return {
                    b.CreateOr(b.CreateFCmpOEQ(abs(x.re), inf), b.CreateFCmpOEQ(abs(x.im), inf))};
            }
            case Prim::IsFinite: {
                IrValue inf = llvm::ConstantFP::getInfinity(type_);
                return {
                    b.CreateAnd(b.CreateFCmpOLT(abs(x.re), inf), b.CreateFCmpOLT(abs(x.im), inf))};
            }
            case Prim::Sign: {
                IrValue r = math(MathFn::Hypot, {x.re, x.im});
                IrValue zero = b.CreateFCmpOEQ(r, num(0));
                return {b.CreateSelect(zero, num(0), b.CreateFDiv(x.re, r)),
                        b.CreateSelect(zero, num(0), b.CreateFDiv(x.im, r))};
            }
            case Prim::Acos:
            case Prim::Acosh:
            case Prim::Asin:
            case Prim::Asinh:
            case Prim::Atan:
            case Prim::Atanh:
            case Prim::Cos:
            case Prim::Cosh:
            case Prim::Exp:
            case Prim::Exp2:
            case Prim::Expm1:
            case Prim::Log:
            case Prim::Log10:
            case Prim::Log1p:
            case Prim::Log2:
            case Prim::Rsqrt:
            case Prim::Sigmoid:
            case Prim::Sin:
            case Prim::Sinh:
            case Prim::Sqrt:
            case Prim::Tan:
            case Prim::Tanh:
                return library();
            default:
                return {};
        }
    }

    Lanes nary(const Lanes& x, const Lanes& y) {
        switch (call_.prim) {
            case Prim::Add:
                return {b.CreateFAdd(x.re, y.re), b.CreateFAdd(x.im, y.im)};
            case Prim::Sub:
                return {b.CreateFSub(x.re, y.re), b.CreateFSub(x.im, y.im)};
            case Prim::Mul:
                return mul(x, y);
            case Prim::Div:
                return quotient(x, y);
            case Prim::Pow:
            case Prim::Xlogy:
                return library();
            case Prim::Eq:
                return {b.CreateAnd(b.CreateFCmpOEQ(x.re, y.re), b.CreateFCmpOEQ(x.im, y.im))};
            case Prim::Ne:
                return {b.CreateOr(b.CreateFCmpUNE(x.re, y.re), b.CreateFCmpUNE(x.im, y.im))};
            case Prim::Fma: {
                Lanes p = mul(x, y);
                const Lanes& z = call_.operands[2];
                return {b.CreateFAdd(p.re, z.re), b.CreateFAdd(p.im, z.im)};
            }
            case Prim::Lerp: {
                const Lanes& w = call_.operands[2];
                Lanes span{b.CreateFSub(y.re, x.re), b.CreateFSub(y.im, x.im)};
                Lanes low = mul(w, span);
                Lanes high = mul(span, {b.CreateFSub(num(1), w.re), b.CreateFNeg(w.im)});
                IrValue near = b.CreateFCmpOLT(
                    b.CreateFAdd(b.CreateFMul(w.re, w.re), b.CreateFMul(w.im, w.im)), num(0.25));
                return {
                    b.CreateSelect(near, b.CreateFAdd(x.re, low.re), b.CreateFSub(y.re, high.re)),
                    b.CreateSelect(near, b.CreateFAdd(x.im, low.im), b.CreateFSub(y.im, high.im))};
            }
            default:
                return {};
        }
    }

    EmitContext& c_;
    llvm::IRBuilder<>& b;
    const PrimCall& call_;
    llvm::Type* type_;
};

}  // namespace

Lanes emit_complex_prim(EmitContext& c, const PrimCall& call) {
    return ComplexPrims(c, call).run();
}

}  // namespace ingot::codegen
