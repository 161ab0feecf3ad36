// The reference evaluator: exact arithmetic of the element types, and that it knows every prim.
#include "ir/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

#include "ir/parse.h"
#include "ir/philox.h"
#include "ir/print.h"
#include "ir/verify.h"

namespace ingot {
namespace {

Tensor floats(Ints sizes, std::vector<double> values, DType t = DType::F32) {
    Tensor out(t, std::move(sizes));
    for (std::size_t i = 0; i < values.size(); ++i)
        out.set(static_cast<std::int64_t>(i), {values[i], 0, static_cast<std::int64_t>(values[i])});
    return out;
}
std::vector<double> run(std::string_view text, std::vector<Tensor> inputs) {
    Tensor out = evaluate(parse_graph(text), inputs)[0];
    std::vector<double> values;
    for (std::int64_t i = 0; i < out.numel(); ++i)
        values.push_back(to_double(out.get(i), out.dtype));
    return values;
}

TEST(Numbers, ReducedFloatsRoundTrip) {
    for (DType t : {DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2}) {
        unsigned count = bytes(t) == 1 ? 256 : 65536;
        for (unsigned bits = 0; bits < count; ++bits) {
            float v = from_bits(static_cast<std::uint16_t>(bits), t);
            if (std::isnan(v))
                EXPECT_TRUE(std::isnan(from_bits(to_bits(v, t), t)));
            else
                EXPECT_EQ(to_bits(v, t), bits);
        }
    }
    EXPECT_EQ(to_bits(65520.f, DType::F16), 0x7c00);  // ties to infinity
    EXPECT_EQ(to_bits(65519.f, DType::F16), 0x7bff);
    EXPECT_EQ(to_bits(449.f, DType::F8E4M3), 0x7e);
    EXPECT_EQ(to_bits(465.f, DType::F8E4M3), 0x7f);
    EXPECT_EQ(to_bits(1.00390625f, DType::BF16), 0x3f80);  // a tie, to even
    EXPECT_EQ(to_bits(std::ldexp(1.f, -25), DType::F16), 0);
}

TEST(Numbers, BfloatMatchesTheUsualBitTrick) {
    std::mt19937 random(1);
    for (int i = 0; i < 100000; ++i) {
        auto bits = static_cast<std::uint32_t>(random());
        auto f = std::bit_cast<float>(bits);
        if (std::isnan(f)) continue;
        std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        ASSERT_EQ(to_bits(f, DType::BF16), rounded);
    }
}

TEST(Reference, BasicFloatArithmeticIsIeee) {
    std::mt19937 random(2);
    for (int i = 0; i < 50000; ++i) {
        auto a = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        auto b = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        auto check = [&](Prim p, float want) {
            const Num x[] = {{a, 0, 0}, {b, 0, 0}};
            auto n = static_cast<std::size_t>(info(p).arity);
            auto got = static_cast<float>(
                evaluate_pointwise(p, DType::F32, DType::F32, std::span(x, n)).re);
            if (std::isnan(want))
                ASSERT_TRUE(std::isnan(got));
            else
                ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want));
        };
        check(Prim::Add, a + b);
        check(Prim::Sub, a - b);
        check(Prim::Mul, a * b);
        check(Prim::Div, a / b);
        check(Prim::Sqrt, std::sqrt(a));
    }
}

TEST(Reference, IntegersWrap) {
    auto eval = [](Prim p, DType t, std::int64_t a, std::int64_t b) {
        const Num x[] = {{0, 0, a}, {0, 0, b}};
        return evaluate_pointwise(p, t, t, x).i;
    };
    EXPECT_EQ(eval(Prim::Add, DType::I8, 127, 1), -128);
    EXPECT_EQ(eval(Prim::Mul, DType::U8, 16, 17), 16);
    EXPECT_EQ(eval(Prim::FloorDiv, DType::I32, -7, 2), -4);
    EXPECT_EQ(eval(Prim::TruncDiv, DType::I32, -7, 2), -3);
    EXPECT_EQ(eval(Prim::Remainder, DType::I32, -7, 2), 1);
    EXPECT_EQ(eval(Prim::Fmod, DType::I32, -7, 2), -1);
    EXPECT_EQ(eval(Prim::TruncDiv, DType::I64, INT64_MIN, -1), INT64_MIN);
    EXPECT_EQ(eval(Prim::Pow, DType::I64, -3, 3), -27);
    EXPECT_EQ(eval(Prim::ShiftRight, DType::I32, -8, 40), -1);
    EXPECT_EQ(eval(Prim::Add, DType::Bool, 1, 1), 1);
    EXPECT_EQ(eval(Prim::Gcd, DType::I32, -12, 18), 6);
    EXPECT_EQ(eval(Prim::Maximum, DType::U64, -1, 5), -1);
}

TEST(Reference, SymbolicSoftmax) {
    auto got = run(R"(symbols s0
graph(%0: f32[2, s0]) {
  %1 = amax(%0) {dims=(1)}
  %2 = broadcast(%1) {sizes=(2, s0), dims=(0)}
  %3 = sub(%0, %2)
  %4 = exp(%3)
  %5 = sum(%4) {dims=(1)}
  %6 = broadcast(%5) {sizes=(2, s0), dims=(0)}
  %7 = div(%4, %6)
  return %7
})",
                   {floats({2, 3}, {0, 1, 2, 5, 5, 5})});
    EXPECT_NEAR(got[0], 0.09003057, 1e-7);
    EXPECT_NEAR(got[2], 0.66524096, 1e-7);
    EXPECT_NEAR(got[4], 1.0 / 3, 1e-7);
}

// The relative difference that PyTorch's own functions have from the true value, generously.
double tolerance_of(DType t) {
    switch (real_type(t)) {
        case DType::F64:
            return 1e-9;
        case DType::F32:
            return 2e-6;
        case DType::F16:
            return 2e-3;
        default:
            return 1e-2;
    }
}

bool agree(Prim p, double a, double b, DType t) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    // relu(-0) is -0 or 0 in eager, depending on the path.
    if (a == b) return std::signbit(a) == std::signbit(b) || a != 0 || p == Prim::Relu;
    // PyTorch's Bessel functions are approximations with errors of this order.
    bool bessel =
        p == Prim::BesselJ0 || p == Prim::BesselJ1 || p == Prim::BesselY0 || p == Prim::BesselY1;
    // The log-sum-exp that the gradient of attention reads is f32.
    double tolerance = bessel || p == Prim::AttentionGrad ? 1e-5 : tolerance_of(t);
    return std::fabs(a - b) <= tolerance * std::max({std::fabs(a), std::fabs(b), 1e-3});
}

// Each case returns pairs: the prim's result and PyTorch's (make_reference_cases.py).
TEST(Reference, AgreesWithPyTorch) {
    std::ifstream in(INGOT_TEST_DATA "/ir/reference_cases.ir");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    std::set<Prim> covered;
    int cases = 0;
    for (std::size_t at = 0, end; at < text.size(); at = end + 4) {
        end = std::min(text.find("===\n", at), text.size());
        Graph g = parse_graph(std::string_view(text).substr(at, end - at));
        verify(g);
        ++cases;
        const Node& n = *std::find_if(g.nodes().begin(), g.nodes().end(),
                                      [](const Node& node) { return node.prim != Prim::Constant; });
        covered.insert(n.prim);
        std::string operands;
        for (ValueId v : n.operands) operands += " " + to_string(g.type(v));
        SCOPED_TRACE(std::string(name(n.prim)) + to_string(n.attrs) + operands);
        std::vector<Tensor> out = evaluate(g, {});
        for (std::size_t i = 0; i < out.size(); i += 2)
            for (std::int64_t k = 0; k < out[i].numel(); ++k) {
                Num got = out[i].get(k), want = out[i + 1].get(k);
                DType t = out[i].dtype;
                bool same = is_integral(t) ? got.i == want.i
                                           : agree(n.prim, got.re, want.re, t) &&
                                                 agree(n.prim, got.im, want.im, t);
                EXPECT_TRUE(same) << "result " << i / 2 << ", element " << k << ": "
                                  << to_double(got, t) << " " << got.im << ", PyTorch "
                                  << to_double(want, t) << " " << want.im;
                if (!same) break;
            }
    }
    EXPECT_GT(cases, 500);
    // What PyTorch has no direct counterpart for, and what is tested elsewhere.
    const std::set<Prim> elsewhere{
        Prim::Cbrt,    Prim::Popcount, Prim::Fma,        Prim::PackedMatmul, Prim::PackedConv,
        Prim::Mode,    Prim::Full,     Prim::Empty,      Prim::SizeValue,    Prim::Constant,
        Prim::Barrier, Prim::Assert,   Prim::MatmulBias, Prim::ConvRelu,     Prim::Philox};
    for (int i = 0; i < kPrimCount; ++i) {
        auto p = static_cast<Prim>(i);
        EXPECT_TRUE(covered.contains(p) || carried_out_by_host(p) || elsewhere.contains(p))
            << name(p) << " has no case";
    }
}

// Known answers of the generator's authors (Random123).
TEST(Philox, GivesTheKnownNumbers) {
    using Four = std::array<std::uint32_t, 4>;
    EXPECT_EQ(philox_block({0, 0, 0, 0}, {0, 0}),
              (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox_block({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(
        philox_block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// A thread's numbers follow one another in its own sequence, whatever the form of the kernel.
TEST(Philox, FollowsTheThreadsOfEagersKernels) {
    constexpr std::int64_t kThreads = 512;
    constexpr std::uint64_t kSeed = 0x123456789abcdef, kOffset = 20;
    for (std::int64_t width : {1, 2, 4, 8}) {
        const PhiloxLayout layout{kThreads, width, true};
        std::vector<std::uint64_t> drawn(kThreads, 0);  // by each thread
        for (std::int64_t first = 0; first < 40000; first += kThreads * width)
            for (std::int64_t thread = 0; thread < kThreads; ++thread) {
                for (std::int64_t i = 0; i < width; ++i) {
                    auto& n = drawn[static_cast<std::size_t>(thread)];
                    const std::uint64_t block = kOffset / 4 + n / 4;
                    const auto four = philox_block({static_cast<std::uint32_t>(block), 0,
                                                    static_cast<std::uint32_t>(thread), 0},
                                                   {0x89abcdef, 0x01234567});
                    const auto place = static_cast<std::uint64_t>(first + thread * width + i);
                    ASSERT_EQ(philox_bits(place, kSeed, kOffset, layout), four[n++ % 4])
                        << width << " " << place;
                }
                // The other half of four numbers is thrown away.
                if (width == 2) drawn[static_cast<std::size_t>(thread)] += 2;
            }
    }
}

TEST(Philox, ComparesBitsAsUniformNumbers) {
    const auto uniform = [](std::int64_t bits) {
        return static_cast<float>(static_cast<std::uint32_t>(bits)) * 0x1p-32f + 0x1p-33f;
    };
    for (double p : {0.0, 1e-9, 0.1, 0.25, 0.5, double(0.9f), 0.9, 1.0}) {
        const std::int64_t limit = philox_threshold(p);
        if (limit > 0) {
            EXPECT_LT(uniform(limit - 1), p);
        }
        if (limit < std::int64_t{1} << 32) {
            EXPECT_GE(uniform(limit), p);
        }
    }
    EXPECT_EQ(philox_threshold(1.5), std::int64_t{1} << 32);
}

// Every pointwise prim is evaluated for some element type it accepts.
TEST(Reference, KnowsEveryPointwisePrim) {
    for (int i = 0; i < kPrimCount; ++i) {
        auto p = static_cast<Prim>(i);
        if (!is_pointwise(p)) continue;
        int worked = 0;
        for (DType t : {DType::F32, DType::BF16, DType::I32, DType::C64, DType::Bool}) {
            std::vector<Type> types(static_cast<std::size_t>(info(p).arity), Type{t, {2}, {}});
            if (p == Prim::Select) types[0].dtype = DType::Bool;
            Attrs attrs;
            for (const AttrSpec& s : attr_specs(p))
                attrs.set(s.name, s.type == "dtype" ? AttrValue(t) : AttrValue(std::int64_t{1}));
            std::vector<Type> results;
            try {
                results = infer_types(p, types, attrs);
            } catch (const InternalError&) {
                continue;
            }
            std::vector<Tensor> operands;
            for (const Type& x : types) operands.push_back(floats({2}, {1, 1}, x.dtype));
            try {
                Tensor r = evaluate(p, operands, attrs, results)[0];
                EXPECT_EQ(r.dtype, results[0].dtype);
                ++worked;
            } catch (const NotSupported&) {
                // A combination that eager does not define either.
            }
        }
        EXPECT_GT(worked, 0) << name(p);
    }
}

}  // namespace
}  // namespace ingot
