// Every math function against a wider libm over a sample of all floats; prints the largest error in
// ulp when INGOT_MATH_TABLE is set.
#include "codegen/llvm/math.h"

#include <gtest/gtest.h>
#include <llvm/IR/IRBuilder.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>

#include "codegen/llvm/jit.h"
#include "codegen/llvm/math_library.h"
#include "codegen/llvm/math_ops.h"
#include "ir/error.h"

namespace ingot::codegen {
namespace {

using Wide = long double;

struct Case {
    MathFn fn;
    double bound32;  // ulp
    double bound64;
    Wide (*reference)(Wide, Wide);
};

Wide sigmoid_of(Wide x) { return 1 / (1 + std::exp(-x)); }
Wide python_modulo(Wide x, Wide y) {
    const Wide r = std::fmod(x, y);
    return r != 0 && std::signbit(r) != std::signbit(y) ? r + y : r;
}

const Case kCases[] = {
    {MathFn::Sqrt, 0.5, 0.5, [](Wide x, Wide) { return std::sqrt(x); }},
    {MathFn::Rsqrt, 1.5, 1.5, [](Wide x, Wide) { return 1 / std::sqrt(x); }},
    {MathFn::Cbrt, 1, 1, [](Wide x, Wide) { return std::cbrt(x); }},
    {MathFn::Exp, 1, 1, [](Wide x, Wide) { return std::exp(x); }},
    {MathFn::Exp2, 1, 1, [](Wide x, Wide) { return std::exp2(x); }},
    {MathFn::Expm1, 1, 1, [](Wide x, Wide) { return std::expm1(x); }},
    {MathFn::Log, 1, 1, [](Wide x, Wide) { return std::log(x); }},
    {MathFn::Log2, 1, 1, [](Wide x, Wide) { return std::log2(x); }},
    {MathFn::Log10, 1, 1, [](Wide x, Wide) { return std::log10(x); }},
    {MathFn::Log1p, 1, 1, [](Wide x, Wide) { return std::log1p(x); }},
    {MathFn::Sin, 1, 1, [](Wide x, Wide) { return std::sin(x); }},
    {MathFn::Cos, 1, 1, [](Wide x, Wide) { return std::cos(x); }},
    {MathFn::Tan, 1, 1, [](Wide x, Wide) { return std::tan(x); }},
    {MathFn::Asin, 1, 1, [](Wide x, Wide) { return std::asin(x); }},
    {MathFn::Acos, 1, 1, [](Wide x, Wide) { return std::acos(x); }},
    {MathFn::Atan, 1, 1, [](Wide x, Wide) { return std::atan(x); }},
    {MathFn::Sinh, 1, 1, [](Wide x, Wide) { return std::sinh(x); }},
    {MathFn::Cosh, 1, 1, [](Wide x, Wide) { return std::cosh(x); }},
    {MathFn::Tanh, 1, 1, [](Wide x, Wide) { return std::tanh(x); }},
    {MathFn::Asinh, 1, 1, [](Wide x, Wide) { return std::asinh(x); }},
    {MathFn::Acosh, 1, 1, [](Wide x, Wide) { return std::acosh(x); }},
    {MathFn::Atanh, 1, 1, [](Wide x, Wide) { return std::atanh(x); }},
    {MathFn::Erf, 1, 1, [](Wide x, Wide) { return std::erf(x); }},
    {MathFn::Erfc, 1, 1, [](Wide x, Wide) { return std::erfc(x); }},
    {MathFn::Lgamma, 1, 1, [](Wide x, Wide) { return std::lgamma(x); }},
    {MathFn::Sigmoid, 2.5, 2.5, [](Wide x, Wide) { return sigmoid_of(x); }},
    {MathFn::Pow, 1, 1, [](Wide x, Wide y) { return std::pow(x, y); }},
    {MathFn::Atan2, 1, 1, [](Wide x, Wide y) { return std::atan2(x, y); }},
    {MathFn::Hypot, 1, 1, [](Wide x, Wide y) { return std::hypot(x, y); }},
    {MathFn::Fmod, 0, 0, [](Wide x, Wide y) { return std::fmod(x, y); }},
    {MathFn::Remainder, 0.5, 0.5, [](Wide x, Wide y) { return python_modulo(x, y); }},
};

template <typename T>
using ArrayFn = void(const T* x, const T* y, T* out, std::int64_t vectors);

/// for (v < vectors) out[v] = fn(x[v], y[v]) on vectors of `lanes` (0: scalars).
template <typename T>
IrModule array_module(const Jit& jit, MathFn fn, unsigned lanes) {
    IrModule ir = jit.make_module("array");
    llvm::IRBuilder<> b(*ir.context);
    llvm::Type* type = sizeof(T) == 4 ? b.getFloatTy() : b.getDoubleTy();
    if (lanes) type = llvm::FixedVectorType::get(type, lanes);
    auto* f = llvm::Function::Create(
        llvm::FunctionType::get(b.getVoidTy(),
                                {b.getPtrTy(), b.getPtrTy(), b.getPtrTy(), b.getInt64Ty()}, false),
        llvm::GlobalValue::ExternalLinkage, "array", *ir.module);
    auto* entry = llvm::BasicBlock::Create(*ir.context, "entry", f);
    auto* loop = llvm::BasicBlock::Create(*ir.context, "loop", f);
    auto* exit = llvm::BasicBlock::Create(*ir.context, "exit", f);
    b.SetInsertPoint(entry);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    llvm::PHINode* v = b.CreatePHI(b.getInt64Ty(), 2);
    v->addIncoming(b.getInt64(0), entry);
    const auto load = [&](unsigned argument) -> llvm::Value* {
        return b.CreateAlignedLoad(type, b.CreateGEP(type, f->getArg(argument), v),
                                   llvm::Align(sizeof(T)));
    };
    llvm::Value* operands[] = {load(0), operand_count(fn) == 2 ? load(1) : nullptr};
    MathContext context{b, jit.target()};
    llvm::Value* y =
        emit_math(context, fn, {operands, static_cast<std::size_t>(operand_count(fn))});
    b.CreateAlignedStore(y, b.CreateGEP(type, f->getArg(2), v), llvm::Align(sizeof(T)));
    llvm::Value* next = b.CreateAdd(v, b.getInt64(1));
    v->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpEQ(next, f->getArg(3)), exit, loop);
    b.SetInsertPoint(exit);
    b.CreateRetVoid();
    return ir;
}

template <typename T>
std::vector<T> run_array(const Jit& jit, MathFn fn, unsigned lanes, const std::vector<T>& x,
                         const std::vector<T>& y) {
    const auto code = jit.load(jit.compile(array_module<T>(jit, fn, lanes)));
    std::vector<T> out(x.size());
    code->template function<ArrayFn<T>>("array")(
        x.data(), y.data(), out.data(), static_cast<std::int64_t>(x.size() / std::max(1u, lanes)));
    return out;
}

/// Special values, then values of every exponent, then values where functions are interesting. A
/// multiple of 64 long.
template <typename T>
std::vector<T> sample(unsigned seed, std::size_t count) {
    using L = std::numeric_limits<T>;
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    std::vector<T> values = {T(0),
                             -T(0),
                             L::infinity(),
                             -L::infinity(),
                             L::quiet_NaN(),
                             L::max(),
                             -L::max(),
                             L::min(),
                             -L::min(),
                             L::denorm_min(),
                             -L::denorm_min(),
                             T(1),
                             T(-1),
                             std::nextafter(T(1), T(0)),
                             std::nextafter(T(1), T(2)),
                             T(0.5),
                             T(-0.5),
                             T(2),
                             T(3),
                             T(1e5)};
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<T> narrow(-1.5, 1.5), middle(-12, 12), broad(-110, 110);
    while (values.size() < count) {
        values.push_back(std::bit_cast<T>(static_cast<Bits>(random())));
        values.push_back(narrow(random));
        values.push_back(middle(random));
        values.push_back(broad(random));
        // Next to a multiple of pi/2, where sine and cosine are tiny.
        values.push_back(static_cast<T>((random() % 40000) * 1.5707963267948966192L));
    }
    values.resize(count / 64 * 64);
    return values;
}

/// |got - want| in units of the spacing of T at `want`; 0 if both are NaN or the same infinity.
template <typename T>
double ulp_error(T got, Wide want) {
    if (std::isnan(want)) return std::isnan(got) ? 0 : 1e30;
    if (std::isnan(got)) return 1e30;
    const T rounded = static_cast<T>(want);
    if (std::isinf(rounded) || std::isinf(got)) {
        if (got == rounded) return 0;
        // One of two neighbours at the edge of the range is as good as anywhere else.
        const T edge = std::copysign(std::numeric_limits<T>::max(), got);
        return (got == edge || rounded == edge) && std::signbit(got) == std::signbit(rounded)
                   ? 0.5
                   : 1e30;
    }
    if (want == 0) return got == 0 ? (std::signbit(got) == std::signbit(want) ? 0 : 1e20) : 1e30;
    int exponent = 0;
    std::frexp(want, &exponent);
    exponent = std::max(exponent, std::numeric_limits<T>::min_exponent);
    return static_cast<double>(std::abs(got - want) /
                               std::ldexp(Wide(1), exponent - std::numeric_limits<T>::digits));
}

template <typename T>
void expect_accurate(const TargetInfo& target, unsigned lanes, std::size_t count) {
    const Jit jit(target);
    const std::vector<T> x = sample<T>(1, count), y = sample<T>(2, count);
    const bool print_table = std::getenv("INGOT_MATH_TABLE") != nullptr;
    for (const Case& c : kCases) {
        const double bound = sizeof(T) == 4 ? c.bound32 : c.bound64;
        const std::vector<T> got = run_array(jit, c.fn, lanes, x, y);
        double worst = 0, where_x = 0, where_y = 0, value = 0;
        for (std::size_t k = 0; k < x.size(); ++k) {
            const Wide want = c.reference(x[k], y[k]);
            const double error = ulp_error(got[k], want);
            // Eager's own formula gives 0 where 1 + exp(-x) overflows; the true value is subnormal
            // there.
            if (c.fn == MathFn::Sigmoid && std::abs(want) < std::numeric_limits<T>::min() * 4)
                continue;
            if (error > worst) {
                worst = error;
                where_x = x[k], where_y = y[k], value = got[k];
            }
        }
        if (print_table)
            std::printf("%-10s f%zu x%-2u %s %.3f ulp at %a %a\n", name(c.fn).data(), 8 * sizeof(T),
                        lanes, target.cpu.c_str(), worst, where_x, where_y);
        EXPECT_LE(worst, bound) << name(c.fn) << '(' << where_x << ", " << where_y
                                << ") = " << value << ", lanes " << lanes << ", " << target.cpu;
    }
}

TEST(Math, F32OnTheHost) { expect_accurate<float>(host(), host().lanes(4), 200000); }

TEST(Math, WithAvx2) {
    const TargetInfo target = target_named("x86-64-v3");
    if (!host().can_run(target)) GTEST_SKIP() << "no AVX2 here";
    expect_accurate<float>(target, 8, 100000);
    expect_accurate<double>(target, 4, 20000);
}

TEST(Math, F32OtherShapes) {
    expect_accurate<float>(host(), 0, 50000);
    expect_accurate<float>(host(), 4, 50000);
    expect_accurate<float>(host(), 64, 50000);
}

TEST(Math, F64) {
    expect_accurate<double>(host(), host().lanes(8), 50000);
    expect_accurate<double>(host(), 0, 20000);
}

/// double f(double x): sin(x) with x reduced by the integer method, which CPUs have no other use
/// for.
TEST(Math, HugeArgumentsAreReducedExactly) {
    const Jit jit(host());
    IrModule ir = jit.make_module("huge");
    llvm::IRBuilder<> b(*ir.context);
    auto* type = llvm::FunctionType::get(b.getDoubleTy(), {b.getDoubleTy()}, false);
    auto* f = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "huge", *ir.module);
    b.SetInsertPoint(llvm::BasicBlock::Create(*ir.context, "entry", f));
    MathContext context{b, jit.target()};
    MathOps m(context, b.getDoubleTy());
    b.CreateRet(sine_of_turn_f64(m, reduce_huge(context, m, f->getArg(0)), 0));
    const auto code = jit.load(jit.compile(std::move(ir)));
    auto* sine = code->function<double(double)>("huge");
    std::mt19937 random(3);
    double worst = 0;
    for (int k = 0; k < 200000; ++k) {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        if (!(std::abs(x) >= 0x1p15f)) continue;
        if (std::isinf(x)) continue;
        worst = std::max(worst, std::abs(sine(x) - static_cast<double>(std::sin(Wide(x)))));
    }
    EXPECT_LT(worst, 1e-11);
    EXPECT_TRUE(std::isnan(sine(std::numeric_limits<double>::infinity())));
    EXPECT_TRUE(std::isnan(sine(std::numeric_limits<double>::quiet_NaN())));
}

TEST(Math, GpuHasEverythingThatNeedsNoLibrary) {
    const Jit gpu(target_named("sm_90"));
    llvm::LLVMContext context;
    int supported = 0;
    for (int k = 0; k < kMathFnCount; ++k) {
        const auto fn = static_cast<MathFn>(k);
        if (!math_supported(fn, llvm::Type::getFloatTy(context), gpu.target())) {
            EXPECT_THROW(array_module<float>(gpu, fn, 0), NotSupported) << name(fn);
            continue;
        }
        ++supported;
        const std::string ptx = gpu.assembly(array_module<float>(gpu, fn, 0));
        EXPECT_NE(ptx.find(".visible .func"), std::string::npos) << name(fn);
        EXPECT_EQ(ptx.find(".extern"), std::string::npos) << name(fn);
    }
    EXPECT_GE(supported, 27);
}

TEST(Math, OtherTargetsCompile) {
    for (const char* cpu : {"x86-64-v2", "x86-64-v3", "sapphirerapids", "neoverse-v1"}) {
        const Jit jit(target_named(cpu));
        for (int k = 0; k < kMathFnCount; ++k)
            EXPECT_FALSE(
                jit.compile(array_module<float>(jit, static_cast<MathFn>(k), jit.target().lanes(4)))
                    .bytes.empty())
                << cpu << name(static_cast<MathFn>(k));
    }
}

TEST(Math, LibraryFunctions) {
    EXPECT_NEAR(digamma(1), -0.57721566490153286, 1e-15);
    EXPECT_NEAR(digamma(0.5), -1.9635100260214235, 1e-14);
    EXPECT_NEAR(digamma(-1.5), 0.70315664064524319, 1e-14);
    EXPECT_NEAR(digamma(1e6), std::log(1e6) - 5e-7, 1e-12);
    EXPECT_TRUE(std::isnan(digamma(-3)));
    EXPECT_EQ(digamma(0), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(digamma(-0.0), std::numeric_limits<double>::infinity());
    for (double y = -0.999; y < 1; y += 0.037) EXPECT_NEAR(std::erf(erfinv(y)), y, 2e-16);
    for (const double rest : {1e-3, 1e-7, 1e-12})
        EXPECT_NEAR(std::erfc(erfinv(1 - rest)) / (1 - (1 - rest)), 1, 1e-13);
    EXPECT_EQ(erfinv(1), std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(erfinv(1.5)));
}

}  // namespace
}  // namespace ingot::codegen
