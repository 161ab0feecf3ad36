// The hot functions in f32 arithmetic: straight-line FMA code with the errors of argument reduction
// carried in a second word where they would cost more than a quarter ulp.
//
// Methods are the textbook ones: Cody and Waite's argument reduction, and the split of erf and tanh
// into an odd polynomial near 0 and an exponential beyond, as published by N. Juffa and used by
// SLEEF (N. Shibata, F. Petrogalli, "SLEEF: A Portable Vectorized Library of C Standard
// Mathematical Functions"). The coefficients are our own: tools/minimax.py.
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

#include "codegen/llvm/math_coefficients.h"
#include "codegen/llvm/math_ops.h"

namespace ingot::codegen {

namespace {

constexpr double kRoundMagic = 0x1.8p23;  // added and subtracted: rounds |x| < 2^22 to an integer

/// exp for at most 0.9 ulp; also right for infinities, subnormal results and NaN.
Value exp_f32(MathOps& m, Value x) {
    // Beyond these the result is 0 or infinite anyway; between them every step below is finite.
    Value bounded = m.at_least(m.at_most(x, 89), -104);
    Value n = m.sub(m.fma(bounded, m.c(0x1.715476p+0), m.c(kRoundMagic)), m.c(kRoundMagic));
    Value r = m.fnma(n, m.c(0x1.62e43p-1), bounded);
    r = m.fnma(n, m.c(-0x1.05c61p-29), r);
    // 1 + r (1 + r P): one rounding less than 1 + (r + r^2 P).
    Value slope = m.fma(r, m.poly<float>(r, kExpF), m.c(1));
    return m.scale(m.fma(r, slope, m.c(1)), n);
}

/// exp(x * y) for -20 < x * y < 20, without the product's rounding.
Value exp_of_product(MathOps& m, Value x, Value y) {
    Value n = m.sub(m.fma(m.mul(x, y), m.c(0x1.715476p+0), m.c(kRoundMagic)), m.c(kRoundMagic));
    // n times the first constant (15 bits) is exact.
    Value r = m.fma(x, y, m.mul(n, m.c(-0x1.62e4p-1)));
    r = m.fnma(n, m.c(0x1.7f7d1cp-20), r);
    Value slope = m.fma(r, m.poly<float>(r, kExpF), m.c(1));
    return m.scale(m.fma(r, slope, m.c(1)), n);
}

/// Exponent and mantissa in [0.75, 1.5) of a positive x; log's special cases come out of infinite
/// exponents where the target has the AVX-512 instructions, and are left to the caller elsewhere.
struct Split {
    Value exponent;
    Value mantissa;
    bool exact_specials;
};

Split split_f32(MathOps& m, Value x) {
    if (m.target.avx512f && m.lanes() == 16) {
        llvm::IRBuilder<>& b = m.b;
        Value none = llvm::PoisonValue::get(m.type());
        Value all = b.getInt16(0xffff);
        // Sign control 2: NaN for negative operands. Interval 3: [0.75, 1.5), where getexp counts
        // from [1, 2).
        Value mantissa = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_getmant_ps_512, {},
                                           {x, b.getInt32(3 | 2 << 2), none, all, b.getInt32(4)});
        Value exponent = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_getexp_ps_512, {},
                                           {x, none, all, b.getInt32(4)});
        exponent = m.select(m.lt(mantissa, m.c(1)), m.add(exponent, m.c(1)), exponent);
        return {exponent, mantissa, true};
    }
    Value tiny = m.lt(x, m.c(0x1p-126));
    Value normal = m.select(tiny, m.mul(x, m.c(0x1p23)), x);
    Value bits = m.to_bits(normal);
    Value shift = m.b.CreateAnd(m.b.CreateSub(bits, m.i(0x3f400000)), m.i(-0x00800000));
    Value exponent = m.b.CreateSIToFP(m.b.CreateAShr(shift, m.i(23)), m.type());
    exponent = m.add(exponent, m.select(tiny, m.c(-23), m.c(0)));
    return {exponent, m.from_bits(m.b.CreateSub(bits, shift)), false};
}

Value log_f32(MathOps& m, Value x) {
    const Split s = split_f32(m, x);
    Value f = m.sub(s.mantissa, m.c(1));
    Value y = m.fma(f, m.poly<float>(f, kLogF), m.c(-0.5));
    y = m.mul(m.mul(f, f), y);
    // ln 2 in two parts, both positive, so that an infinite exponent gives an infinity and not a
    // NaN.
    y = m.add(m.fma(s.exponent, m.c(0x1.7f7d1cp-20), y), f);
    y = m.fma(s.exponent, m.c(0x1.62e4p-1), y);
    if (s.exact_specials) return y;
    y = m.select(m.lt(x, m.inf()), y, x);  // infinity and NaN
    y = m.select(m.eq(x, m.c(0)), m.neg(m.inf()), y);
    return m.select(m.lt(x, m.c(0)), m.nan(), y);
}

/// tanh: an odd polynomial up to 1, then 1 - 2/(exp(2|x|) + 1).
Value tanh_f32(MathOps& m, Value x) {
    Value magnitude = m.abs(x);
    Value s = m.mul(x, x);
    Value small = m.fma(m.mul(magnitude, s), m.poly<float>(s, kTanhF), magnitude);
    Value e = exp_f32(m, m.add(magnitude, magnitude));
    Value large = m.sub(m.c(1), m.div(m.c(2), m.add(e, m.c(1))));
    return m.copysign(m.select(m.lt(magnitude, m.c(1)), small, large), x);
}

/// erf: an odd polynomial up to 1, then 1 - exp(a polynomial).
Value erf_f32(MathOps& m, Value x) {
    Value t = m.abs(x);
    Value s = m.mul(x, x);
    Value small = m.fma(x, m.poly<float>(s, kErfSmallF), x);
    Value bounded = m.at_most(t, 4.0);  // erf(4) rounds to 1
    Value e = exp_of_product(m, bounded, m.poly<float>(bounded, kErfLargeF));
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

Reduced reduce_f32(MathOps& m, Value magnitude) {
    Value shifted = m.fma(magnitude, m.c(0x1.45f306p-1), m.c(kRoundMagic));
    Value n = m.sub(shifted, m.c(kRoundMagic));
    // pi/2 in three parts. The first product cancels exactly. `first` is a multiple of 2^-23 and so
    // of the last place of `second`, which makes the rounding error of high computable (Fast2Sum).
    Value first = m.fnma(n, m.c(0x1.921fb6p+0), magnitude);
    Value second = m.mul(n, m.c(-0x1.777a5cp-25));
    Value high = m.sub(first, second);
    Value third = m.fma(n, m.c(-0x1.777a5cp-25), m.neg(second));
    third = m.fma(n, m.c(-0x1.ee59dap-50), third);
    Value low = m.sub(m.sub(m.sub(first, high), second), third);
    return {m.to_bits(shifted), high, low};
}

/// sin(x) or cos(x) = sin(|x| + pi/2). Sine and cosine of one x share everything but the last few
/// instructions, once LLVM has removed common subexpressions.
Value sine_of_quadrant(MathOps& m, const Reduced& r, Value x, bool want_cosine) {
    Value s = m.mul(r.high, r.high);
    Value cube = m.mul(r.high, s);
    Value sine = m.add(r.high, m.fma(cube, m.poly<float>(s, kSinF), r.low));
    Value square_rest = m.fma(r.high, r.high, m.neg(s));
    Value small = m.fnma(r.high, r.low, m.mul(m.mul(s, s), m.poly<float>(s, kCosF)));
    small = m.fma(square_rest, m.c(-0.5), small);
    Value cosine = m.add(m.c(1), m.fma(s, m.c(-0.5), small));
    Value odd = m.b.CreateICmpNE(m.b.CreateAnd(r.quadrant, m.i(1)), m.i(0));
    Value y = want_cosine ? m.select(odd, sine, cosine) : m.select(odd, cosine, sine);
    Value quadrant = want_cosine ? m.b.CreateAdd(r.quadrant, m.i(1)) : r.quadrant;
    Value flip = m.b.CreateShl(quadrant, m.i(30));
    if (!want_cosine) flip = m.b.CreateXor(flip, m.to_bits(x));
    return m.from_bits(m.b.CreateXor(m.to_bits(y), m.b.CreateAnd(flip, m.i(INT32_MIN))));
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
Value huge_f32(MathContext& context, MathFn fn, Value x) {
    if (!context.target.is_gpu())
        return emit_scalar_calls(context, "ingot_" + std::string(name(fn)) + "f", {&x, 1});
    MathOps d(context, widened_type(context, x));
    const TurnRest turn = reduce_huge(context, d, context.b.CreateFPExt(x, d.type()));
    Value y = fn == MathFn::Tan ? tan_of_turn_f64(d, turn)
                                : sine_of_turn_f64(d, turn, fn == MathFn::Cos ? 1 : 0);
    return context.b.CreateFPTrunc(y, x->getType());
}

Value sin_cos_part(MathContext& context, MathFn fn, Value x) {
    MathOps m(context, x->getType());
    const Reduced r = reduce_f32(m, m.abs(x));
    return sine_of_quadrant(m, r, x, fn == MathFn::Cos);
}

Value tan_part(MathContext& context, Value x) {
    MathOps m(context, x->getType());
    MathOps d(context, widened_type(context, x));
    Value y = tan_of_turn_f64(d, reduce_f64(d, m.b.CreateFPExt(x, d.type())));
    return m.select(m.eq(x, m.c(0)), x, m.b.CreateFPTrunc(y, x->getType()));  // keeps -0
}

}  // namespace

bool is_trigonometric(MathFn fn) {
    return fn == MathFn::Sin || fn == MathFn::Cos || fn == MathFn::Tan;
}

bool has_f32(MathFn fn) {
    return fn == MathFn::Exp || fn == MathFn::Log || fn == MathFn::Tanh || fn == MathFn::Erf ||
           is_trigonometric(fn);
}

/// Sine, cosine and tangent of a vector of any width: all parts first, then one branch for huge
/// arguments in any of them, so that the parts' latencies overlap.
Value emit_trigonometric_f32(MathContext& context, MathFn fn, Value x) {
    MathOps m(context, x->getType());
    const bool tangent = fn == MathFn::Tan;
    Value fast = MathOps::in_parts(
        m.b, {&x, 1}, m.target.lanes(tangent ? 8 : 4), [&](std::span<const Value> part) {
            return tangent ? tan_part(context, part[0]) : sin_cos_part(context, fn, part[0]);
        });
    Value rare = m.b.CreateNot(m.le(m.abs(x), m.c(tangent ? 0x1p30 : kReductionLimit)));
    return with_rare_case(m, rare, fast, [&] {
        return MathOps::in_parts(m.b, {&x, 1}, m.target.lanes(4), [&](std::span<const Value> part) {
            return huge_f32(context, fn, part[0]);
        });
    });
}

Value emit_f32(MathContext& context, MathFn fn, std::span<const Value> x) {
    MathOps m(context, x[0]->getType());
    switch (fn) {
        case MathFn::Exp:
            return exp_f32(m, x[0]);
        case MathFn::Log:
            return log_f32(m, x[0]);
        case MathFn::Tanh:
            return tanh_f32(m, x[0]);
        case MathFn::Erf:
            return erf_f32(m, x[0]);
        default:
            return nullptr;
    }
}

}  // namespace ingot::codegen
