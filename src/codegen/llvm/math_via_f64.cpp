// f32 functions computed in f64: simple formulas, almost correctly rounded results, about half the
// speed of f32 code. Operands are f32 values, so nothing overflows, subnormals are normal, and
// squares are exact.
//
// The formulas are the classical ones (log1p with the rounding of 1 + u added back, inverse
// hyperbolic functions through log1p, arcus functions through one arctangent of two operands).
// Coefficients: tools/minimax.py.
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_ops.h"

namespace ingot::codegen {

namespace {

constexpr double kRoundMagic = 0x1.8p52;
constexpr double kPi = 0x1.921fb54442d18p+1;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLog2E = 0x1.71547652b82fep+0;

struct ExpParts {
    Value n;  // exp = 2^n (1 + p)
    Value p;
};

ExpParts exp_parts(MathOps& m, Value x) {
    Value bounded = m.at_least(m.at_most(x, 110), -110);  // beyond, an f32 is 0 or infinite
    Value n = m.sub(m.fma(bounded, m.c(kLog2E), m.c(kRoundMagic)), m.c(kRoundMagic));
    Value r = m.fnma(n, m.c(kLn2), bounded);
    return {n, m.fma(m.mul(r, r), m.poly(r, kExpD), r)};
}

Value exp_f64(MathOps& m, Value x) {
    const ExpParts e = exp_parts(m, x);
    return m.scale(m.add(e.p, m.c(1)), e.n);
}

Value expm1_f64(MathOps& m, Value x) {
    const ExpParts e = exp_parts(m, x);
    Value power = m.scale(m.c(1), e.n);
    return m.fma(power, e.p, m.sub(power, m.c(1)));
}

Value exp2_f64(MathOps& m, Value x) {
    Value bounded = m.at_least(m.at_most(x, 160), -160);
    Value n = m.sub(m.add(bounded, m.c(kRoundMagic)), m.c(kRoundMagic));
    Value r = m.mul(m.sub(bounded, n), m.c(kLn2));
    Value p = m.fma(m.mul(r, r), m.poly(r, kExpD), r);
    return m.scale(m.add(p, m.c(1)), n);
}

struct LogParts {
    Value exponent;
    Value log1p;  // of the mantissa - 1
};

/// For positive finite normal x; `with_specials` does the rest.
LogParts log_parts(MathOps& m, Value x) {
    Value bits = m.to_bits(x);
    Value shift = m.b.CreateAnd(m.b.CreateSub(bits, m.i(0x3fe8000000000000)),
                                m.i(static_cast<std::int64_t>(0xfff0000000000000)));
    // The exponent as a number: added into the low bits of 1.5 * 2^52.
    Value exponent = m.b.CreateAdd(m.b.CreateAShr(shift, m.i(52)), m.to_bits(m.c(kRoundMagic)));
    Value f = m.sub(m.from_bits(m.b.CreateSub(bits, shift)), m.c(1));
    Value y = m.fma(f, m.poly(f, kLogD), m.c(-0.5));
    return {m.sub(m.from_bits(exponent), m.c(kRoundMagic)), m.fma(m.mul(f, f), y, f)};
}

Value with_log_specials(MathOps& m, Value x, Value y) {
    y = m.select(m.lt(x, m.inf()), y, x);  // infinity and NaN
    y = m.select(m.eq(x, m.c(0)), m.neg(m.inf()), y);
    return m.select(m.lt(x, m.c(0)), m.nan(), y);
}

/// log(x) * log(base of e) : `scale` is 1/ln(base), `exponent_scale` log_base(2).
Value log_f64(MathOps& m, Value x, double scale, double exponent_scale) {
    const LogParts l = log_parts(m, x);
    Value mantissa = scale == 1 ? l.log1p : m.mul(l.log1p, m.c(scale));
    return with_log_specials(m, x, m.fma(l.exponent, m.c(exponent_scale), mantissa));
}

Value log1p_f64(MathOps& m, Value u) {
    Value w = m.add(u, m.c(1));
    // What 1 + u rounded away matters only for small u, where dividing it by w changes nothing.
    Value lost = m.select(m.lt(m.abs(u), m.c(0.5)), m.sub(u, m.sub(w, m.c(1))), m.c(0));
    return m.add(log_f64(m, w, 1, kLn2), lost);
}

/// Angle of the point (x, y).
Value atan2_f64(MathOps& m, Value y, Value x) {
    Value ax = m.abs(x), ay = m.abs(y);
    Value steep = m.gt(ay, ax);
    Value low = m.select(steep, ax, ay), high = m.select(steep, ay, ax);
    Value t = m.div(low, high);
    t = m.select(m.eq(high, m.c(0)), m.c(0), t);
    t = m.select(m.eq(low, m.inf()), m.c(1), t);
    Value s = m.mul(t, t);
    Value angle = m.fma(m.mul(t, s), m.poly(s, kAtanD), t);
    angle = m.select(steep, m.sub(m.c(kPi / 2), angle), angle);
    Value left = m.b.CreateICmpSLT(m.to_bits(x), m.i(0));
    angle = m.copysign(m.select(left, m.sub(m.c(kPi), angle), angle), y);
    return m.select(m.b.CreateFCmpUNO(x, y), m.nan(), angle);
}

Value atan_f64(MathOps& m, Value x) {
    Value a = m.abs(x);
    Value steep = m.gt(a, m.c(1));
    Value t = m.select(steep, m.div(m.c(1), a), a);
    Value s = m.mul(t, t);
    Value angle = m.fma(m.mul(t, s), m.poly(s, kAtanD), t);
    angle = m.select(steep, m.sub(m.c(kPi / 2), angle), angle);
    return m.copysign(angle, x);
}

Value tan_f64(MathOps& m, const TurnRest& turn) {
    Value s = m.mul(turn.rest, turn.rest);
    Value sine = m.fma(m.mul(turn.rest, s), m.poly(s, kSinD), turn.rest);
    Value cosine = cos_of_rest_f64(m, s);
    Value odd = m.b.CreateICmpNE(m.b.CreateAnd(turn.quadrant, m.i(1)), m.i(0));
    return m.div(m.select(odd, m.neg(cosine), sine), m.select(odd, sine, cosine));
}

Value asinh_f64(MathOps& m, Value x) {
    Value a = m.abs(x);
    Value square = m.mul(a, a);
    Value u = m.div(square, m.add(m.sqrt(m.add(square, m.c(1))), m.c(1)));
    Value y = log1p_f64(m, m.add(a, u));
    return m.copysign(m.select(m.lt(a, m.inf()), y, a), x);
}

Value acosh_f64(MathOps& m, Value x) {
    Value t = m.sub(x, m.c(1));
    Value y = log1p_f64(m, m.add(t, m.sqrt(m.mul(t, m.add(t, m.c(2))))));
    return m.select(m.lt(x, m.c(1)), m.nan(), y);
}

Value atanh_f64(MathOps& m, Value x) {
    Value a = m.abs(x);
    Value y = log1p_f64(m, m.div(m.add(a, a), m.sub(m.c(1), a)));
    return m.copysign(m.mul(y, m.c(0.5)), x);
}

Value sinh_f64(MathOps& m, Value x) {
    Value e = expm1_f64(m, m.abs(x));
    Value y = m.mul(m.add(e, m.div(e, m.add(e, m.c(1)))), m.c(0.5));
    return m.copysign(y, x);
}

Value cosh_f64(MathOps& m, Value x) {
    Value e = exp_f64(m, m.abs(x));
    return m.mul(m.add(e, m.div(m.c(1), e)), m.c(0.5));
}

/// exp(-a^2) times a polynomial in (a - 2)/(a + 2), a = |x|; mirrored for negative x.
Value erfc_f64(MathOps& m, Value x) {
    Value a = m.at_most(m.abs(x), 10.1);  // erfc(10.1) rounds to 0 in f32
    Value t = m.div(m.sub(a, m.c(2)), m.add(a, m.c(2)));
    Value e = exp_f64(m, m.neg(m.mul(a, a)));
    Value y = m.mul(e, m.poly(t, kErfcD));
    return m.select(m.lt(x, m.c(0)), m.sub(m.c(2), y), y);
}

Value pow_f64(MathOps& m, Value x, Value y) {
    Value a = m.abs(x);
    Value log2 = log_f64(m, a, kLog2E, 1);
    Value r = exp2_f64(m, m.mul(log2, y));
    // A negative base: the sign of odd powers, and NaN for powers that are no integers.
    Value negative = m.b.CreateICmpSLT(m.to_bits(x), m.i(0));
    Value half = m.mul(y, m.c(0.5));
    Value integral = m.eq(m.trunc(y), y);
    Value odd = m.b.CreateAnd(integral, m.b.CreateFCmpUNE(m.trunc(half), half));
    r = m.select(m.b.CreateAnd(negative, odd), m.neg(r), r);
    Value real = m.b.CreateOr(integral, m.b.CreateFCmpUEQ(a, m.inf()));
    Value below_zero = m.lt(x, m.c(0));
    r = m.select(m.b.CreateAnd(below_zero, m.b.CreateNot(real)), m.nan(), r);
    Value minus_one = m.b.CreateAnd(m.eq(x, m.c(-1)), m.eq(m.abs(y), m.inf()));
    Value one = m.b.CreateOr(m.b.CreateOr(m.eq(y, m.c(0)), m.eq(x, m.c(1))), minus_one);
    return m.select(one, m.c(1), r);
}

Value hypot_f64(MathOps& m, Value x, Value y) {
    Value r = m.sqrt(m.fma(x, x, m.mul(y, y)));
    Value infinite = m.b.CreateOr(m.eq(m.abs(x), m.inf()), m.eq(m.abs(y), m.inf()));
    return m.select(infinite, m.inf(), r);
}

Value cbrt_f64(MathOps& m, Value x) {
    Value third = m.mul(log_f64(m, m.abs(x), kLog2E, 1), m.c(1.0 / 3));
    return m.copysign(exp2_f64(m, third), x);
}

}  // namespace

TurnRest reduce_f64(MathOps& m, Value x) {
    Value shifted = m.fma(x, m.c(0x1.45f306dc9c883p-1), m.c(kRoundMagic));
    Value n = m.sub(shifted, m.c(kRoundMagic));
    Value rest = m.fnma(n, m.c(0x1.921fb54442d18p+0), x);
    return {m.to_bits(shifted), m.fnma(n, m.c(0x1.1a62633145c07p-54), rest)};
}

Value cos_of_rest_f64(MathOps& m, Value s) {
    return m.fma(m.mul(s, s), m.poly(s, kCosD), m.fma(s, m.c(-0.5), m.c(1)));
}

Value sine_of_turn_f64(MathOps& m, const TurnRest& turn, int quarter_turns) {
    Value s = m.mul(turn.rest, turn.rest);
    Value sine = m.fma(m.mul(turn.rest, s), m.poly(s, kSinD), turn.rest);
    Value quadrant = m.b.CreateAdd(turn.quadrant, m.i(quarter_turns));
    Value odd = m.b.CreateICmpNE(m.b.CreateAnd(quadrant, m.i(1)), m.i(0));
    Value y = m.select(odd, cos_of_rest_f64(m, s), sine);
    Value sign = m.b.CreateAnd(m.b.CreateShl(quadrant, m.i(62)), m.i(INT64_MIN));
    return m.from_bits(m.b.CreateXor(m.to_bits(y), sign));
}

Value tan_of_turn_f64(MathOps& m, const TurnRest& turn) { return tan_f64(m, turn); }

bool has_via_f64(MathFn fn) {
    switch (fn) {
        case MathFn::Exp2:
        case MathFn::Expm1:
        case MathFn::Log2:
        case MathFn::Log10:
        case MathFn::Log1p:
        case MathFn::Asin:
        case MathFn::Acos:
        case MathFn::Atan:
        case MathFn::Atan2:
        case MathFn::Sinh:
        case MathFn::Cosh:
        case MathFn::Asinh:
        case MathFn::Acosh:
        case MathFn::Atanh:
        case MathFn::Erfc:
        case MathFn::Pow:
        case MathFn::Hypot:
        case MathFn::Cbrt:
            return true;
        default:
            return false;
    }
}

Value emit_via_f64(MathContext& context, MathFn fn, std::span<const Value> x) {
    MathOps m(context, x[0]->getType());
    const auto hypotenuse = [&] {  // sqrt(1 - x^2), without cancellation
        return m.sqrt(m.mul(m.sub(m.c(1), x[0]), m.add(m.c(1), x[0])));
    };
    switch (fn) {
        case MathFn::Exp2:
            return exp2_f64(m, x[0]);
        case MathFn::Expm1:
            return m.select(m.eq(x[0], m.c(0)), x[0], expm1_f64(m, x[0]));  // keeps -0
        case MathFn::Log2:
            return log_f64(m, x[0], kLog2E, 1);
        case MathFn::Log10:
            return log_f64(m, x[0], 0x1.bcb7b1526e50ep-2, 0x1.34413509f79ffp-2);
        case MathFn::Log1p:
            return m.select(m.eq(x[0], m.c(0)), x[0], log1p_f64(m, x[0]));
        case MathFn::Asin:
            return atan2_f64(m, x[0], hypotenuse());
        case MathFn::Acos:
            return atan2_f64(m, hypotenuse(), x[0]);
        case MathFn::Atan:
            return atan_f64(m, x[0]);
        case MathFn::Atan2:
            return atan2_f64(m, x[0], x[1]);
        case MathFn::Sinh:
            return sinh_f64(m, x[0]);
        case MathFn::Cosh:
            return cosh_f64(m, x[0]);
        case MathFn::Asinh:
            return asinh_f64(m, x[0]);
        case MathFn::Acosh:
            return acosh_f64(m, x[0]);
        case MathFn::Atanh:
            return atanh_f64(m, x[0]);
        case MathFn::Erfc:
            return erfc_f64(m, x[0]);
        case MathFn::Pow:
            return pow_f64(m, x[0], x[1]);
        case MathFn::Hypot:
            return hypot_f64(m, x[0], x[1]);
        case MathFn::Cbrt:
            return cbrt_f64(m, x[0]);
        default:
            return nullptr;
    }
}

}  // namespace ingot::codegen
