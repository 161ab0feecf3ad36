// Conversions against plain C++ that follows the formats' definitions.
#include "codegen/llvm/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "codegen/llvm/jit.h"

namespace ingot::codegen {
namespace {

constexpr unsigned kLanes = 16;

template <typename Emit>
IrModule vector_module(const Jit& jit, DType in, DType out, Emit emit) {
    IrModule ir = jit.make_module("convert");
    llvm::IRBuilder<> b(*ir.context);
    auto* f = llvm::Function::Create(
        llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getPtrTy()}, false),
        llvm::GlobalValue::ExternalLinkage, "convert", *ir.module);
    b.SetInsertPoint(llvm::BasicBlock::Create(*ir.context, "entry", f));
    auto* type = llvm::FixedVectorType::get(memory_type(*ir.context, in), kLanes);
    llvm::Value* x = b.CreateAlignedLoad(type, f->getArg(0), llvm::Align(1));
    MathContext context{b, jit.target()};
    llvm::Value* y = to_memory(context, emit(context, from_memory(context, x, in)), out, false);
    b.CreateAlignedStore(y, f->getArg(1), llvm::Align(1));
    b.CreateRetVoid();
    return ir;
}

/// out[i] = in[i] converted, for any number of elements.
template <typename In, typename Out>
std::vector<Out> run_convert(const TargetInfo& target, const std::vector<In>& in, DType from,
                             DType to) {
    const Jit jit(target);
    const auto code = jit.load(jit.compile(vector_module(
        jit, from, to, [&](MathContext& c, llvm::Value* x) { return convert(c, x, from, to); })));
    auto* f = code->template function<void(const In*, Out*)>("convert");
    std::vector<In> padded = in;
    padded.resize((in.size() + kLanes - 1) / kLanes * kLanes);
    std::vector<Out> out(padded.size());
    for (std::size_t k = 0; k < padded.size(); k += kLanes) f(&padded[k], &out[k]);
    out.resize(in.size());
    return out;
}

std::vector<float> floats(std::size_t count) {
    std::vector<float> values = {0.f,
                                 -0.f,
                                 1.f,
                                 -1.f,
                                 0.5f,
                                 448.f,
                                 464.f,
                                 465.f,
                                 480.f,
                                 65504.f,
                                 65519.f,
                                 65520.f,
                                 57344.f,
                                 61440.f,
                                 1e30f,
                                 -1e30f,
                                 0x1p-149f,
                                 0x1p-133f,
                                 0x1.8p-134f,
                                 0x1p-134f,
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::max()};
    std::mt19937 random(7);
    std::uniform_real_distribution<float> near(-20, 20);
    while (values.size() < count) {
        values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
        values.push_back(near(random));
        values.push_back(std::ldexp(near(random), -18));
        values.push_back(near(random) * 40);
    }
    return values;
}

/// Value of a format with `exponent_bits` and `mantissa_bits`; `finite`: no infinity, one NaN a
/// sign (f8e4m3).
double decode(unsigned bits, int exponent_bits, int mantissa_bits, bool finite) {
    const int width = 1 + exponent_bits + mantissa_bits;
    const double sign = bits >> (width - 1) & 1 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int top = (1 << exponent_bits) - 1;
    if (exponent == top && !finite)
        return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    if (finite && exponent == top && mantissa == (1u << mantissa_bits) - 1) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp((1u << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Format {
    DType dtype;
    int exponent_bits, mantissa_bits;
    bool finite;
};
const Format kFormats[] = {{DType::BF16, 8, 7, false},
                           {DType::F16, 5, 10, false},
                           {DType::F8E4M3, 4, 3, true},
                           {DType::F8E5M2, 5, 2, false}};

template <typename Stored>
void check_format(const Format& f) {
    const TargetInfo target = host();
    const unsigned count = 1u << (8 * sizeof(Stored));
    std::vector<Stored> all(count);
    for (unsigned k = 0; k < count; ++k) all[k] = static_cast<Stored>(k);
    const std::vector<float> values = run_convert<Stored, float>(target, all, f.dtype, DType::F32);
    for (unsigned k = 0; k < count; ++k) {
        const double want = decode(k, f.exponent_bits, f.mantissa_bits, f.finite);
        if (std::isnan(want))
            ASSERT_TRUE(std::isnan(values[k])) << k;
        else
            ASSERT_EQ(values[k], want) << k;
    }
    // Rounding: the nearest of all values, the even one of two; the search is over a monotonic
    // list.
    const unsigned half = count / 2;
    const unsigned nan_byte = f.finite ? half - 1 : 0;
    const unsigned last = f.finite ? half - 2 : (((1u << f.exponent_bits) - 1) << f.mantissa_bits);
    const std::vector<float> x = floats(200000);
    const std::vector<Stored> got = run_convert<float, Stored>(target, x, DType::F32, f.dtype);
    for (std::size_t k = 0; k < x.size(); ++k) {
        const unsigned sign = std::signbit(x[k]) ? half : 0;
        if (std::isnan(x[k])) {
            ASSERT_TRUE(std::isnan(decode(got[k], f.exponent_bits, f.mantissa_bits, f.finite)));
            continue;
        }
        unsigned low = 0, high = last;  // values[low] <= |x|; the top behaves as one step further
        const double magnitude = std::abs(static_cast<double>(x[k]));
        while (low + 1 < high) {
            const unsigned middle = (low + high) / 2;
            (values[middle] <= magnitude ? low : high) = middle;
        }
        if (f.finite && values[high] <= magnitude) low = high, ++high;
        const double step_low = values[low];
        const double step_high = f.finite && high > last    ? step_low + 32
                                 : std::isinf(values[high]) ? 2 * step_low - values[low - 1]
                                                            : values[high];
        const double middle = (step_low + step_high) / 2;
        unsigned want = magnitude < middle || (magnitude == middle && low % 2 == 0) ? low : high;
        if (magnitude == step_high && high <= last) want = high;
        if (f.finite && want > last) want = nan_byte;
        // PyTorch's f8e4m3 turns everything from 480 on into NaN, and rounds what is between 464
        // and 480 up to it.
        ASSERT_EQ(got[k], (sign | want)) << x[k] << ' ' << name(f.dtype);
    }
}

TEST(Convert, ReducedFloats) {
    check_format<std::uint16_t>(kFormats[0]);
    check_format<std::uint16_t>(kFormats[1]);
    check_format<std::uint8_t>(kFormats[2]);
    check_format<std::uint8_t>(kFormats[3]);
}

TEST(Convert, ReducedFloatsRoundTripExactly) {
    for (const Format& f : {kFormats[0], kFormats[1]}) {
        std::vector<std::uint16_t> all(1u << 16);
        for (unsigned k = 0; k < all.size(); ++k) all[k] = static_cast<std::uint16_t>(k);
        const auto back = run_convert<float, std::uint16_t>(
            host(), run_convert<std::uint16_t, float>(host(), all, f.dtype, DType::F32), DType::F32,
            f.dtype);
        for (unsigned k = 0; k < all.size(); ++k) {
            if (std::isnan(decode(k, f.exponent_bits, f.mantissa_bits, false))) continue;
            ASSERT_EQ(back[k], k);
        }
    }
}

template <typename In, typename Out>
void check_to_int(DType from, DType to) {
    std::vector<In> x;
    for (const float v : floats(20000)) x.push_back(static_cast<In>(v));
    for (const double v : {0.99, -0.99, 127.9, -128.9, 255.0, 256.0, 300.0, -1.0, 32768.5,
                           2147483520.0, 2147483648.0, -2147483648.0, 4294967040.0, 9.2e18})
        x.push_back(static_cast<In>(v));
    const std::vector<Out> got = run_convert<In, Out>(host(), x, from, to);
    for (std::size_t k = 0; k < x.size(); ++k) {
        const bool narrow = std::is_signed_v<Out> && sizeof(Out) < 8;
        const double limit = narrow ? 0x1p31 : 0x1p63;
        Out want = 0;
        if (x[k] >= -limit && x[k] < limit)
            want = narrow ? static_cast<Out>(static_cast<std::int32_t>(x[k]))
                          : static_cast<Out>(static_cast<std::int64_t>(x[k]));
        else if (sizeof(Out) == 8 && !std::is_signed_v<Out> && x[k] >= 0x1p63 && x[k] < 0x1p64)
            want = static_cast<Out>(static_cast<std::uint64_t>(x[k]));
        else if (sizeof(Out) == 8 && !std::is_signed_v<Out> && x[k] >= 0x1p64)
            continue;  // undefined in eager, too
        else
            want = narrow ? static_cast<Out>(INT32_MIN) : static_cast<Out>(INT64_MIN);
        ASSERT_EQ(got[k], want) << x[k] << " to " << name(to);
    }
}

TEST(Convert, FloatsToIntegers) {
    check_to_int<float, std::int8_t>(DType::F32, DType::I8);
    check_to_int<float, std::int16_t>(DType::F32, DType::I16);
    check_to_int<float, std::int32_t>(DType::F32, DType::I32);
    check_to_int<float, std::int64_t>(DType::F32, DType::I64);
    check_to_int<float, std::uint8_t>(DType::F32, DType::U8);
    check_to_int<float, std::uint32_t>(DType::F32, DType::U32);
    check_to_int<float, std::uint64_t>(DType::F32, DType::U64);
    check_to_int<double, std::int32_t>(DType::F64, DType::I32);
    check_to_int<double, std::int64_t>(DType::F64, DType::I64);
    check_to_int<double, std::uint8_t>(DType::F64, DType::U8);
}

TEST(Convert, IntegersToFloatsAndBool) {
    const std::vector<std::int64_t> x = {0, 1, -1, 255, 256, 257, 16777217, INT64_MAX, INT64_MIN};
    const auto real = run_convert<std::int64_t, float>(host(), x, DType::I64, DType::F32);
    const auto truth = run_convert<std::int64_t, std::uint8_t>(host(), x, DType::I64, DType::Bool);
    const auto byte = run_convert<std::int64_t, std::uint8_t>(host(), x, DType::I64, DType::U8);
    const auto bf16 = run_convert<std::int64_t, std::uint16_t>(host(), x, DType::I64, DType::BF16);
    for (std::size_t k = 0; k < x.size(); ++k) {
        EXPECT_EQ(real[k], static_cast<float>(x[k]));
        EXPECT_EQ(truth[k], x[k] != 0);
        EXPECT_EQ(byte[k], static_cast<std::uint8_t>(x[k]));
    }
    EXPECT_EQ(bf16[5], 0x4380);  // 257 -> 256, ties to even
    const auto nan_truth = run_convert<float, std::uint8_t>(host(), {std::nanf(""), -0.f, 1e-45f},
                                                            DType::F32, DType::Bool);
    EXPECT_EQ(nan_truth, (std::vector<std::uint8_t>{1, 0, 1}));
    const auto from_bool =
        run_convert<std::uint8_t, float>(host(), {0, 1, 2}, DType::Bool, DType::F32);
    EXPECT_EQ(from_bool, (std::vector<float>{0, 1, 1}));
    const auto unsigned_real =
        run_convert<std::uint64_t, double>(host(), {UINT64_MAX}, DType::U64, DType::F64);
    EXPECT_EQ(unsigned_real[0], 0x1p64);
}

}  // namespace
}  // namespace ingot::codegen
