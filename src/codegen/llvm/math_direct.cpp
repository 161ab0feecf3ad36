// The hot functions in their operands' own precision: straight-line FMA code with the errors of
// argument reduction carried in a second word where they would cost more than a quarter ulp. One
// text for f32 and f64; the numbers stand in `Constants`.
//
// Methods are the textbook ones: Cody and Waite's argument reduction, and the split of erf and tanh
// into an odd polynomial near 0 and an exponential beyond, as published by N. Juffa and used by
// SLEEF (N. Shibata, F. Petrogalli, "SLEEF: A Portable Vectorized Library of C Standard
// Mathematical Functions"). The coefficients are our own: tools/minimax.py.
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>

#include <string>

#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_ops.h"

namespace ingot::codegen {

namespace {

using Polynomial = std::span<const double>;

struct Constants {
    double round_magic;        // added and subtracted: rounds to an integer
    double exp_low, exp_high;  // beyond, exp is 0 or infinite
    double log2_e;
    double ln2[2];        // high part of full precision, rest
    double ln2_short[2];  // high part that is exact times any exponent, rest; both positive
    double two_over_pi;
    double half_pi[3];
    double smallest_normal;
    int fraction_bits;
    std::int64_t three_quarters;  // the bits of 0.75
    double erf_limit;             // erf rounds to 1 from here on
    Polynomial exp, log, tanh, erf_small, erf_large, sin, cos;
};

constexpr Constants kFloat = {
    .round_magic = 0x1.8p23,
    .exp_low = -104,
    .exp_high = 89,
    .log2_e = 0x1.715476p+0,
    .ln2 = {0x1.62e43p-1, -0x1.05c61p-29},
    .ln2_short = {0x1.62e4p-1, 0x1.7f7d1cp-20},
    .two_over_pi = 0x1.45f306p-1,
    .half_pi = {0x1.921fb6p+0, -0x1.777a5cp-25, -0x1.ee59dap-50},
    .smallest_normal = 0x1p-126,
    .fraction_bits = 23,
    .three_quarters = 0x3f400000,
    .erf_limit = 4,
    .exp = kExp32,
    .log = kLog32,
    .tanh = kTanh32,
    .erf_small = kErfSmall32,
    .erf_large = kErfLarge32,
    .sin = kSin32,
    .cos = kCos32,
};

constexpr Constants kDouble = {
    .round_magic = 0x1.8p52,
    .exp_low = -746,
    .exp_high = 710,
    .log2_e = 0x1.71547652b82fep+0,
    .ln2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56},
    .ln2_short = {0x1.62e42feep-1, 0x1.a39ef35793c76p-33},
    .two_over_pi = 0x1.45f306dc9c883p-1,
    .half_pi = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110},
    .smallest_normal = 0x1p-1022,
    .fraction_bits = 52,
    .three_quarters = 0x3fe8000000000000,
    .erf_limit = 6,
    .exp = kExp64,
    .log = kLog64,
    .tanh = kTanh64,
    .erf_small = kErfSmall64,
    .erf_large = kErfLarge64,
    .sin = kSin64,
    .cos = kCos64,
};

const Constants& constants(const MathOps& m) { return m.is_f32() ? kFloat : kDouble; }

/// 2^n exp(r) for |r| <= ln(2)/2, at most 0.9 ulp with r's own rounding.
Value scaled_exp(MathOps& m, Value r, Value n) {
    // 1 + r (1 + r P): one rounding less than 1 + (r + r^2 P).
    Value slope = m.fma(r, m.poly(r, constants(m).exp), m.c(1));
    return m.scale(m.fma(r, slope, m.c(1)), n);
}

Value rounded(MathOps& m, Value x, double factor) {
    Value magic = m.c(constants(m).round_magic);
    return m.sub(m.fma(x, m.c(factor), magic), magic);
}

/// By the GPU's own 2^f for |f| <= 0.5, or any f where n has reached its bounds: also right for
/// infinities, subnormal results and NaN. At most 2 ulp, as CUDA's.
Value exp_by_instruction(MathOps& m, Value x) {
    constexpr double kLog2ELow = 0x1.4ae0cp-26;
    const Constants& k = constants(m);
    Value n = m.mul(x, m.c(k.log2_e));
    n = m.b.CreateMaxNum(m.b.CreateMinNum(n, m.c(126)), m.c(-126));  // numbers, also for NaN
    Value shifted = m.add(n, m.c(k.round_magic));
    n = m.sub(shifted, m.c(k.round_magic));
    Value f = m.fma(x, m.c(kLog2ELow), m.fma(x, m.c(k.log2_e), m.neg(n)));
    Value power = m.b.CreateShl(m.b.CreateAdd(m.to_bits(shifted), m.i(127)), m.i(k.fraction_bits));
    return m.mul(m.exp2_of_gpu(f), m.from_bits(power));
}

/// Also right for infinities, subnormal results and NaN.
Value exp_direct(MathOps& m, Value x) {
    const Constants& k = constants(m);
    if (m.target.is_gpu() && m.is_f32()) return exp_by_instruction(m, x);
    Value bounded = m.at_least(m.at_most(x, k.exp_high), k.exp_low);
    Value n = rounded(m, bounded, k.log2_e);
    Value r = m.fnma(n, m.c(k.ln2[0]), bounded);
    return scaled_exp(m, m.fnma(n, m.c(k.ln2[1]), r), n);
}

/// exp(x * y) for |x * y| < 50, without the product's rounding.
Value exp_of_product(MathOps& m, Value x, Value y) {
    const Constants& k = constants(m);
    // Of erf alone, where at most 0.16 of the result is this: the product may round.
    if (m.target.is_gpu() && m.is_f32()) return exp_by_instruction(m, m.mul(x, y));
    Value n = rounded(m, m.mul(x, y), k.log2_e);
    Value r = m.fma(x, y, m.mul(n, m.c(-k.ln2_short[0])));
    return scaled_exp(m, m.fnma(n, m.c(k.ln2_short[1]), r), n);
}

/// Exponent and mantissa in [0.75, 1.5) of a positive x; log's special cases come out of infinite
/// exponents where the target has the AVX-512 instructions, and are left to the caller elsewhere.
struct Split {
    Value exponent;
    Value mantissa;
    bool exact_specials;
};

Split split_by_instruction(MathOps& m, Value x) {
    llvm::IRBuilder<>& b = m.b;
    const auto mantissa_of = m.is_f32() ? llvm::Intrinsic::x86_avx512_mask_getmant_ps_512
                                        : llvm::Intrinsic::x86_avx512_mask_getmant_pd_512;
    const auto exponent_of = m.is_f32() ? llvm::Intrinsic::x86_avx512_mask_getexp_ps_512
                                        : llvm::Intrinsic::x86_avx512_mask_getexp_pd_512;
    Value none = llvm::PoisonValue::get(m.type());
    Value all = llvm::Constant::getAllOnesValue(b.getIntNTy(m.lanes()));
    // Sign control 2: NaN for negative operands. Interval 3: [0.75, 1.5), where getexp counts from
    // [1, 2).
    Value mantissa =
        b.CreateIntrinsic(mantissa_of, {}, {x, b.getInt32(3 | 2 << 2), none, all, b.getInt32(4)});
    Value exponent = b.CreateIntrinsic(exponent_of, {}, {x, none, all, b.getInt32(4)});
    exponent = m.select(m.lt(mantissa, m.c(1)), m.add(exponent, m.c(1)), exponent);
    return {exponent, mantissa, true};
}

Split split(MathOps& m, Value x) {
    if (m.target.avx512f && m.lanes() && m.bits() == 512) return split_by_instruction(m, x);
    const Constants& k = constants(m);
    const std::int64_t fraction = std::int64_t{1} << k.fraction_bits;
    Value tiny = m.lt(x, m.c(k.smallest_normal));
    Value normal = m.select(tiny, m.mul(x, m.c(static_cast<double>(fraction))), x);
    Value bits = m.to_bits(normal);
    Value shift = m.b.CreateAnd(m.b.CreateSub(bits, m.i(k.three_quarters)), m.i(-fraction));
    // The exponent as a number: added into the low bits of 1.5 * 2^fraction_bits.
    Value number =
        m.b.CreateAdd(m.b.CreateAShr(shift, m.i(k.fraction_bits)), m.to_bits(m.c(k.round_magic)));
    Value exponent = m.sub(m.from_bits(number), m.c(k.round_magic));
    exponent = m.add(exponent, m.select(tiny, m.c(-k.fraction_bits), m.c(0)));
    return {exponent, m.from_bits(m.b.CreateSub(bits, shift)), false};
}

Value log_direct(MathOps& m, Value x) {
    const Constants& k = constants(m);
    const Split s = split(m, x);
    Value f = m.sub(s.mantissa, m.c(1));
    Value y = m.fma(f, m.poly(f, k.log), m.c(-0.5));
    y = m.mul(m.mul(f, f), y);
    // Both parts of ln 2 are positive, so that an infinite exponent gives an infinity and not a
    // NaN.
    y = m.add(m.fma(s.exponent, m.c(k.ln2_short[1]), y), f);
    y = m.fma(s.exponent, m.c(k.ln2_short[0]), y);
    if (s.exact_specials) return y;
    y = m.select(m.lt(x, m.inf()), y, x);  // infinity and NaN
    y = m.select(m.eq(x, m.c(0)), m.neg(m.inf()), y);
    return m.select(m.lt(x, m.c(0)), m.nan(), y);
}

/// tanh: an odd polynomial up to 1, then 1 - 2/(exp(2|x|) + 1).
Value tanh_direct(MathOps& m, Value x) {
    Value magnitude = m.abs(x);
    Value s = m.mul(x, x);
    Value small = m.fma(m.mul(magnitude, s), m.poly(s, constants(m).tanh), magnitude);
    Value e = exp_direct(m, m.add(magnitude, magnitude));
    Value large = m.sub(m.c(1), m.quick_div(m.c(2), m.add(e, m.c(1))));
    return m.copysign(m.select(m.lt(magnitude, m.c(1)), small, large), x);
}

/// erf: an odd polynomial up to 1, then 1 - exp(a polynomial).
Value erf_direct(MathOps& m, Value x) {
    Value t = m.abs(x);
    Value s = m.mul(x, x);
    Value small = m.fma(x, m.poly(s, constants(m).erf_small), x);
    Value bounded = m.at_most(t, constants(m).erf_limit);
    Value e = exp_of_product(m, bounded, m.poly(bounded, constants(m).erf_large));
    Value large = m.copysign(m.sub(m.c(1), e), x);
    return m.select(m.lt(t, m.c(1)), small, large);
}

/// The quadrant of |x| and the rest |x| - quadrant * pi/2 as a sum high + low, for |x| <=
/// kReductionLimit.
struct Reduced {
    Value quadrant;  // integer
    Value high, low;
};
constexpr double kReductionLimit = 48000;

Reduced reduce(MathOps& m, Value magnitude) {
    const Constants& k = constants(m);
    Value shifted = m.fma(magnitude, m.c(k.two_over_pi), m.c(k.round_magic));
    Value n = m.sub(shifted, m.c(k.round_magic));
    // The first product cancels exactly. `first` is a multiple of an ulp of 1 and so of the last
    // place of `second`, which makes the rounding error of high computable (Fast2Sum).
    Value first = m.fnma(n, m.c(k.half_pi[0]), magnitude);
    Value second = m.mul(n, m.c(k.half_pi[1]));
    Value high = m.sub(first, second);
    Value third = m.fma(n, m.c(k.half_pi[1]), m.neg(second));
    third = m.fma(n, m.c(k.half_pi[2]), third);
    Value low = m.sub(m.sub(m.sub(first, high), second), third);
    return {m.to_bits(shifted), high, low};
}

/// sin(x) or cos(x) = sin(|x| + pi/2). Sine and cosine of one x share everything but the last few
/// instructions, once LLVM has removed common subexpressions.
Value sine_of_quadrant(MathOps& m, const Reduced& r, Value x, bool want_cosine) {
    Value s = m.mul(r.high, r.high);
    Value cube = m.mul(r.high, s);
    Value sine = m.add(r.high, m.fma(cube, m.poly(s, constants(m).sin), r.low));
    Value square_rest = m.fma(r.high, r.high, m.neg(s));
    Value small = m.fnma(r.high, r.low, m.mul(m.mul(s, s), m.poly(s, constants(m).cos)));
    small = m.fma(square_rest, m.c(-0.5), small);
    Value cosine = m.add(m.c(1), m.fma(s, m.c(-0.5), small));
    Value odd = m.b.CreateICmpNE(m.b.CreateAnd(r.quadrant, m.i(1)), m.i(0));
    Value y = want_cosine ? m.select(odd, sine, cosine) : m.select(odd, cosine, sine);
    Value quadrant = want_cosine ? m.b.CreateAdd(r.quadrant, m.i(1)) : r.quadrant;
    const int top = m.is_f32() ? 31 : 63;
    Value flip = m.b.CreateShl(quadrant, m.i(top - 1));
    if (!want_cosine) flip = m.b.CreateXor(flip, m.to_bits(x));
    Value sign = m.b.CreateAnd(flip, m.b.CreateShl(m.i(1), m.i(top)));
    return m.from_bits(m.b.CreateXor(m.to_bits(y), sign));
}

Value any(MathOps& m, Value mask) { return m.lanes() ? m.b.CreateOrReduce(mask) : mask; }

/// `fast` where `rare` fails, else `slow()`, behind a branch that is almost never taken.
Value with_rare_case(MathOps& m, Value rare, Value fast, llvm::function_ref<Value()> slow) {
    llvm::IRBuilder<>& b = m.b;
    Value condition = any(m, rare);
    llvm::BasicBlock* before = b.GetInsertBlock();
    llvm::Function* f = before->getParent();
    llvm::LLVMContext& context = f->getContext();
    auto* rare_block = llvm::BasicBlock::Create(context, "rare", f);
    auto* after = llvm::BasicBlock::Create(context, "joined", f);
    // A builder in the middle of a block: what follows moves behind the join.
    if (b.GetInsertPoint() != before->end()) {
        after->splice(after->end(), before, b.GetInsertPoint(), before->end());
        after->replaceSuccessorsPhiUsesWith(before, after);
    }
    b.SetInsertPoint(before);
    b.CreateCondBr(condition, rare_block, after,
                   llvm::MDBuilder(context).createBranchWeights(1, 1 << 20));
    b.SetInsertPoint(rare_block);
    Value y = m.select(rare, slow(), fast);
    llvm::BasicBlock* rare_end = b.GetInsertBlock();
    b.CreateBr(after);
    b.SetInsertPoint(after, after->begin());
    llvm::PHINode* joined = b.CreatePHI(m.type(), 2);
    joined->addIncoming(fast, before);
    joined->addIncoming(y, rare_end);
    return joined;
}

llvm::Type* widened_type(MathContext& context, Value x) {
    llvm::Type* wide = context.b.getDoubleTy();
    const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
    return vector ? llvm::FixedVectorType::get(wide, vector->getNumElements()) : wide;
}

/// The slow way for arguments that the fast one does not reach. On CPUs libm's, lane by lane:
/// little code that is compiled once a module. GPUs have no libm.
Value huge_argument(MathContext& context, MathFn fn, Value x) {
    const char* suffix = x->getType()->getScalarType()->isFloatTy() ? "f" : "";
    if (!context.target.is_gpu())
        return emit_scalar_calls(context, "ingot_" + std::string(name(fn)) + suffix, {&x, 1});
    MathOps d(context, widened_type(context, x));
    const TurnRest turn = reduce_huge(context, d, context.b.CreateFPExt(x, d.type()));
    Value y = fn == MathFn::Tan ? tan_of_turn_f64(d, turn)
                                : sine_of_turn_f64(d, turn, fn == MathFn::Cos ? 1 : 0);
    return context.b.CreateFPTrunc(y, x->getType());
}

Value sin_cos_part(MathContext& context, MathFn fn, Value x) {
    MathOps m(context, x->getType());
    const Reduced r = reduce(m, m.abs(x));
    return sine_of_quadrant(m, r, x, fn == MathFn::Cos);
}

Value tan_part(MathContext& context, Value x) {
    MathOps m(context, x->getType());
    MathOps d(context, widened_type(context, x));
    Value y = tan_of_turn_f64(d, reduce_f64(d, m.b.CreateFPExt(x, d.type())));
    return m.select(m.eq(x, m.c(0)), x, m.b.CreateFPTrunc(y, x->getType()));  // keeps -0
}

/// The error of x log2(e) is at most 2^-17 of the result for |x| < 88.
Value exp_quick(MathOps& m, Value x) { return m.exp2_of_gpu(m.mul(x, m.c(kFloat.log2_e))); }

/// 1 - 2/(exp(2|x|) + 1); near 0, where that loses digits, x - x^3/3 + 2 x^5/15.
Value tanh_quick(MathOps& m, Value x) {
    Value magnitude = m.abs(x);
    Value e = m.exp2_of_gpu(m.mul(magnitude, m.c(2 * kFloat.log2_e)));
    Value large = m.fma(m.reciprocal_of_gpu(m.add(e, m.c(1))), m.c(-2), m.c(1));
    Value s = m.mul(x, x);
    Value slope = m.fma(s, m.fma(s, m.c(2.0 / 15), m.c(-1.0 / 3)), m.c(1));
    Value near = m.lt(magnitude, m.c(0.125));
    return m.select(near, m.mul(x, slope), m.copysign(large, x));
}

/// erfc(t) for t >= 0 by 2^(t q(t)), whose q is log2(erfc(t))/t fitted over [0, 4] (7e-7 of 1);
/// beyond, it goes on falling, to 0 for infinity.
Value erfc_of_magnitude(MathOps& m, Value t) {
    constexpr double kFit[] = {-1.6278933, -0.9184717, -0.14875567, 0.029669214, -0.0029667937};
    return m.exp2_of_gpu(m.mul(t, m.poly(t, kFit)));
}

Value erfc_quick(MathOps& m, Value x) {
    Value e = erfc_of_magnitude(m, m.abs(x));
    return m.select(m.lt(x, m.c(0)), m.sub(m.c(2), e), e);
}

/// 1 - erfc(|x|); near 0 the series.
Value erf_quick(MathOps& m, Value x) {
    constexpr double kSlope = 1.1283791670955126;  // 2 / sqrt(pi)
    Value magnitude = m.abs(x);
    Value large = m.copysign(m.sub(m.c(1), erfc_of_magnitude(m, magnitude)), x);
    Value s = m.mul(x, x);
    Value slope = m.fma(s, m.fma(s, m.c(kSlope / 10), m.c(-kSlope / 3)), m.c(kSlope));
    return m.select(m.lt(magnitude, m.c(0.125)), m.mul(x, slope), large);
}

Value sigmoid_quick(MathOps& m, Value x) {
    return m.reciprocal_of_gpu(m.add(m.exp2_of_gpu(m.mul(x, m.c(-kFloat.log2_e))), m.c(1)));
}

}  // namespace

bool is_trigonometric(MathFn fn) {
    return fn == MathFn::Sin || fn == MathFn::Cos || fn == MathFn::Tan;
}

bool has_direct(MathFn fn, const llvm::Type* element, const TargetInfo& target) {
    switch (fn) {
        case MathFn::Exp:
        case MathFn::Log:
        case MathFn::Tanh:
        case MathFn::Erf:
            return true;
        case MathFn::Sin:
        case MathFn::Cos:
            return element->isFloatTy() || !target.is_gpu();
        case MathFn::Tan:
            return element->isFloatTy();
        default:
            return false;
    }
}

/// Sine, cosine and tangent of a vector of any width: all parts first, then one branch for huge
/// arguments in any of them, so that the parts' latencies overlap.
Value emit_trigonometric(MathContext& context, MathFn fn, Value x) {
    MathOps m(context, x->getType());
    const bool tangent = fn == MathFn::Tan;
    const unsigned lanes = m.target.lanes(tangent || !m.is_f32() ? 8 : 4);
    Value fast = MathOps::in_parts(m.b, {&x, 1}, lanes, [&](std::span<const Value> part) {
        return tangent ? tan_part(context, part[0]) : sin_cos_part(context, fn, part[0]);
    });
    Value rare = m.b.CreateNot(m.le(m.abs(x), m.c(tangent ? 0x1p30 : kReductionLimit)));
    return with_rare_case(m, rare, fast, [&] { return huge_argument(context, fn, x); });
}

Value emit_quick(MathContext& context, MathFn fn, Value x) {
    if (!context.quick || !context.target.is_gpu() || !x->getType()->getScalarType()->isFloatTy())
        return nullptr;
    MathOps m(context, x->getType());
    switch (fn) {
        case MathFn::Exp:
            return exp_quick(m, x);
        case MathFn::Tanh:
            return tanh_quick(m, x);
        case MathFn::Erf:
            return erf_quick(m, x);
        case MathFn::Erfc:
            return erfc_quick(m, x);
        case MathFn::Sigmoid:
            return sigmoid_quick(m, x);
        default:
            return nullptr;
    }
}

// 2^r of r = x log2(e), rounded, and what that rounding has left of x: exp(x - r ln(2)) is one and
// the difference, which one fma gives but for ln(2)'s own rounding (2.7e-9 of x).
Value emit_exp_beside_one(MathContext& context, Value x) {
    const llvm::IRBuilder<>::FastMathFlagGuard guard(context.b);
    MathOps m(context, x->getType());
    constexpr double kLeast = -110;  // 2^r is 0 there; infinities would leave NaN
    x = context.target.gpu_capability() >= 80
            ? m.b.CreateBinaryIntrinsic(llvm::Intrinsic::maximum, x, m.c(kLeast))
            : m.at_least(x, kLeast);
    Value r = m.mul(x, m.c(kFloat.log2_e));
    Value rest = m.fnma(r, m.c(kFloat.ln2[0]), x);
    Value y = m.exp2_of_gpu(r);
    return m.fma(y, rest, y);
}

Value emit_direct(MathContext& context, MathFn fn, Value x) {
    MathOps m(context, x->getType());
    switch (fn) {
        case MathFn::Exp:
            return exp_direct(m, x);
        case MathFn::Log:
            return log_direct(m, x);
        case MathFn::Tanh:
            return tanh_direct(m, x);
        case MathFn::Erf:
            return erf_direct(m, x);
        default:
            return nullptr;
    }
}

}  // namespace ingot::codegen
