// Emitted loop nests against the interpreter: shapes of loops, index patterns, masks, binds,
// atomics, reductions; and against results known beforehand where PyTorch's meaning is special.
#include <limits>
#include <list>
#include <numeric>

#include "codegen/nest_support.h"

namespace ingot::testing {
namespace {

/// Every kernel has a pool of its own, so that loop variables may have any extent.
Kernel parse(const std::string& text) {
    static std::list<ExprPool> pools;
    return parse_kernel(text, pools.emplace_back());
}

std::string pointwise(std::int64_t n, const std::string& type, const std::string& body,
                      const std::string& out = "") {
    return "kernel \"p\" {\n buffer 0: " + type + "[" + std::to_string(n) +
           "] read\n buffer 1: " + type + "[" + std::to_string(n) +
           "] read\n buffer 2: " + (out.empty() ? type : out) + "[" + std::to_string(n) +
           "] written\n nest {\n loop i0 < " + std::to_string(n) +
           " vector\n phase {\n %0: " + type + " = load 0[i0]\n %1: " + type + " = load 1[i0]\n " +
           body + "\n }\n }\n}";
}

TEST(Nest, PointwiseOfEveryLength) {
    for (int n : {1, 3, 7, 15, 16, 17, 33, 63, 64, 65, 100, 255, 4096, 4097, 10000})
        compare_with_interpreter(parse(pointwise(
            n, "f32", "%2: f32 = mul(%0, %1)\n %3: f32 = add(%2, %0)\n store 2[i0] = %3")));
}

TEST(Nest, PointwiseOfASymbolicLength) {
    Kernel k = parse(R"(kernel "p" { sizes s0
      buffer 0: f32[s0] read
      buffer 1: f32[s0] written
      nest { loop i0 < s0 vector
        phase { %0: f32 = load 0[i0]
          %1: f32 = exp(%0)
          store 1[i0] = %1 } } })");
    for (std::int64_t n : {1, 5, 64, 1000, 9999}) compare_with_interpreter(k, {.sizes = {n}});
}

TEST(Nest, RowReductionsAndLaterPhases) {
    for (int n : {1, 5, 17, 64, 100, 768, 5000, 70001}) {
        const std::string e = std::to_string(n), two = std::to_string(2 * n);
        compare_with_interpreter(parse(R"(kernel "softmax" {
          buffer 0: f32[)" + two + R"(] read
          buffer 1: f32[)" + two + R"(] written
          buffer 2: f32[)" + e + R"(] scratch read written
          nest { loop i0 < 2
            phase { loop i1 < )" + e + R"( vector
              %0: f32 = load 0[)" + e + R"(*i0 + i1]
              reduce max f32 %0 }
            phase { loop i2 < )" + e + R"( vector
              %0: f32 = load 0[)" + e + R"(*i0 + i2]
              %1: f32 = reduced(0, 0, 0)
              %2: f32 = sub(%0, %1)
              %3: f32 = exp(%2)
              reduce sum f32 %3
              store 2[i2] = %3 }
            phase { loop i3 < )" + e + R"( vector
              %0: f32 = load 2[i3]
              %1: f32 = reduced(1, 0, 0)
              %2: f32 = div(%0, %1)
              store 1[)" + e + R"(*i0 + i3] = %2 } } })"));
    }
}

TEST(Nest, ColumnReductionRunsOnVectorsOfPoints) {
    for (int n : {1, 9, 64, 200})
        for (int rows : {1, 7, 3000}) {
            const std::string e = std::to_string(n), r = std::to_string(rows);
            compare_with_interpreter(parse(R"(kernel "colsum" {
              buffer 0: f32[)" + std::to_string(n * rows) +
                                           R"(] read
              buffer 1: f32[)" + e + R"(] written
              nest { loop i0 < )" + e + R"( vector
                phase { loop i1 < )" + r + R"(
                  %0: f32 = load 0[)" + e + R"(*i1 + i0]
                  reduce sum f32 %0 }
                phase { %0: f32 = reduced(0, 0, 0)
                  store 1[i0] = %0 } } })"));
        }
}

TEST(Nest, ReductionOverTwoLoopsWithAFixedSmallOne) {
    compare_with_interpreter(parse(R"(kernel "r" {
      buffer 0: f32[2520] read
      buffer 1: f32[8] written
      nest { loop i0 < 8
        phase { loop i1 < 9
          loop i2 < 35 vector
          %0: f32 = load 0[315*i0 + 35*i1 + i2]
          reduce sum f32 %0
          reduce min f32 %0 }
        phase { %0: f32 = reduced(0, 0, 0)
          %1: f32 = reduced(0, 1, 0)
          %2: f32 = add(%0, %1)
          store 1[i0] = %2 } } })"));
    compare_with_interpreter(parse(R"(kernel "pool" {
      buffer 0: f32[1100] read
      buffer 1: f32[256] written
      nest { loop i0 < 16
        loop i1 < 16 vector
        phase { loop i2 < 3 unroll
          loop i3 < 3 unroll
          %0: f32 = load 0[66*i0 + 33*i2 + 2*i1 + i3]
          reduce max f32 %0 }
        phase { %0: f32 = reduced(0, 0, 0)
          store 1[16*i0 + i1] = %0 } } })"));
}

TEST(Nest, IndexPatterns) {
    for (const char* offset :
         {"i0", "199 - i0", "2*i0", "3*i0", "4*i0", "5*i0", "7", "i0 // 64", "i0 % 64",
          "64*(i0 // 64)", "i0 // 7", "i0 % 7 + 3*(i0 // 7)", "min(i0, 50)", "max(i0 - 20, 0)",
          "(i0 + 32) // 16", "2*(i0 % 32)", "(199 - i0) // 3", "i0 // 32 % 2"})
        compare_with_interpreter(parse(R"(kernel "idx" {
          buffer 0: f32[1000] read
          buffer 1: f32[200] written
          nest { loop i0 < 200 vector
            phase { %0: f32 = load 0[)" +
                                       std::string(offset) + R"(]
              store 1[i0] = %0 } } })"));
}

TEST(Nest, StoresAnywhere) {
    for (const char* offset : {"199 - i0", "3*i0", "i0 // 7 + 100*(i0 % 7)"})
        for (const char* type : {"f32", "f64", "bf16", "i8", "c64"})
            compare_with_interpreter(parse(R"(kernel "st" {
              buffer 0: )" + std::string(type) +
                                           R"([200] read
              buffer 1: )" + type + R"([1000] written
              nest { loop i0 < 200 vector
                phase { %0: )" + type + R"( = load 0[i0]
                  store 1[)" + offset + R"(] = %0 } } })"));
}

TEST(Nest, MaskedLoadsAndStores) {
    for (const char* type : {"f32", "bf16", "i64", "b8", "c64"})
        compare_with_interpreter(parse(R"(kernel "pad" {
          buffer 0: )" + std::string(type) +
                                       R"([90] read
          buffer 1: )" + type + R"([100] written
          nest { loop i0 < 100 vector
            phase { %0: i64 = index [i0 - 5]
              %1: i64 = constant 0
              %2: i64 = constant 90
              %3: b8 = ge(%0, %1)
              %4: b8 = lt(%0, %2)
              %5: b8 = logical_and(%3, %4)
              %6: )" + type + R"( = load 0[i0 - 5] if %5 else 1
              %7: i64 = constant 97
              %8: b8 = ne(%0, %7)
              store 1[i0] = %6 if %8 } } })"));
}

TEST(Nest, BoundIndicesGatherAndAreChecked) {
    const std::string text = R"(kernel "gather" {
      buffer 0: i64[50] read
      buffer 1: f32[300] read
      buffer 2: f32[300] written
      nest { loop i0 < 50
        loop i1 < 6 vector
        phase { %0: i64 = load 0[i0]
          %1: i64 = bind x0 %0 extent [50] imm 1
          %2: f32 = load 1[6*x0 + i1]
          store 2[6*i0 + i1] = %2 } } })";
    compare_with_interpreter(parse(text), {.index_bound = 50});
    compare_with_interpreter(parse(text), {.index_bound = 52, .expect_error = true});
    const std::string lanes = R"(kernel "take" {
      buffer 0: i64[150] read
      buffer 1: f32[300] read
      buffer 2: f32[150] written
      nest { loop i0 < 150 vector
        phase { %0: i64 = load 0[i0]
          %1: i64 = bind x0 %0 extent [50] imm 1
          %2: f32 = load 1[6*x0 + i0 % 6]
          store 2[i0] = %2 } } })";
    compare_with_interpreter(parse(lanes), {.index_bound = 50});
    compare_with_interpreter(parse(lanes), {.index_bound = 52, .expect_error = true});
}

// `imm 2` counts no index from the end.
TEST(Nest, BoundIndicesFromTheStartRefuseNegativeOnes) {
    for (const char* kind : {"", " vector"}) {
        Kernel k = parse(R"(kernel "gather" {
          buffer 0: i64[40] read
          buffer 1: f32[50] read
          buffer 2: f32[40] written
          nest { loop i0 < 40)" +
                         std::string(kind) + R"(
            phase { %0: i64 = load 0[i0]
              %1: i64 = bind x0 %0 extent [50] imm 2
              %2: f32 = load 1[x0]
              store 2[i0] = %2 } } })");
        compare_with_interpreter(k, {.index_bound = 50});
        compare_with_interpreter(k, {.index_bound = 52, .expect_error = true});
        CompiledKernel compiled(k, codegen::host());
        std::vector<std::int64_t> index(40, 49);
        std::vector<float> from(50, 3), out(40);
        void* buffers[] = {index.data(), from.data(), out.data()};
        EXPECT_EQ(compiled.run(buffers, {}), kNoError);
        index[37] = -1;
        EXPECT_EQ(compiled.run(buffers, {}), kIndexOutOfRange);
        EXPECT_FALSE(evaluate(k, buffers, {}));
    }
}

TEST(Nest, AtomicAddsOfEveryType) {
    for (const char* type : {"f32", "f64", "bf16", "f16", "i32", "i64", "c64"})
        compare_with_interpreter(parse(R"(kernel "scatter" {
          buffer 0: i64[45] read
          buffer 1: )" + std::string(type) +
                                       R"([45] read
          buffer 2: )" + type + R"([50] read written
          nest { loop i0 < 45 vector
            phase { %0: i64 = load 0[i0]
              %1: i64 = bind x0 %0 extent [50] imm 1
              %2: )" + type + R"( = load 1[i0]
              store 2[x0] = %2 atomic_add } } })"),
                                 {.tolerance = 1e-5, .index_bound = 50});
}

TEST(Nest, AllTypesOfArithmetic) {
    for (const char* type :
         {"f32", "f64", "bf16", "f16", "i8", "u8", "i16", "i32", "i64", "c64", "c128", "b8"})
        for (const char* op : {"add", "mul"})
            for (int n : {5, 37, 300})
                compare_with_interpreter(parse(pointwise(
                    n, type,
                    "%2: " + std::string(type) + " = " + op + "(%0, %1)\n store 2[i0] = %2")));
}

TEST(Nest, IntegerDivisionFollowsPythonAndFlagsZero) {
    for (const char* type : {"i8", "i16", "i32", "i64", "u8", "u16", "u32"})
        for (const char* op : {"trunc_div", "floor_div", "fmod", "remainder"}) {
            Kernel k = parse(pointwise(41, type,
                                       "%2: " + std::string(type) + " = constant 3\n %3: " + type +
                                           " = bitwise_or(%1, %2)\n %4: " + type + " = " + op +
                                           "(%0, %3)\n store 2[i0] = %4"));
            compare_with_interpreter(k);
            Kernel zero = parse(pointwise(
                41, type, "%2: " + std::string(type) + " = " + op + "(%0, %1)\n store 2[i0] = %2"));
            CompiledKernel compiled(zero, codegen::host());
            std::vector<std::int64_t> a(41, -7), b(41, 0), c(41);
            void* buffers[] = {a.data(), b.data(), c.data()};
            EXPECT_EQ(compiled.run(buffers, {}), kDivisionByZero);
            std::fill(b.begin(), b.end(), 0x0505050505050505);
            EXPECT_EQ(compiled.run(buffers, {}), kNoError);
        }
}

TEST(Nest, SmallestIntegerDividedByMinusOneWraps) {
    Kernel k = parse(pointwise(20, "i64", "%2: i64 = trunc_div(%0, %1)\n store 2[i0] = %2"));
    CompiledKernel compiled(k, codegen::host());
    std::vector<std::int64_t> a(20, std::numeric_limits<std::int64_t>::min()), b(20, -1), c(20);
    void* buffers[] = {a.data(), b.data(), c.data()};
    EXPECT_EQ(compiled.run(buffers, {}), 0);
    EXPECT_EQ(c, a);
}

TEST(Nest, ExtremaPropagateNan) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const char* op : {"maximum", "minimum"}) {
        Kernel k = parse(
            pointwise(35, "f32", "%2: f32 = " + std::string(op) + "(%0, %1)\n store 2[i0] = %2"));
        CompiledKernel compiled(k, codegen::host());
        std::vector<float> a(35, 1), b(35, 2), c(35);
        a[3] = b[20] = a[34] = nan;
        void* buffers[] = {a.data(), b.data(), c.data()};
        compiled.run(buffers, {});
        for (std::size_t i = 0; i < 35; ++i)
            EXPECT_EQ(std::isnan(c[i]), i == 3 || i == 20 || i == 34) << op << i;
    }
}

TEST(Nest, ArgReductionsTakeTheFirstAndNanWins) {
    for (int n : {10, 64, 100, 1000})
        for (const char* op : {"argmax", "argmin"}) {
            const std::string e = std::to_string(n);
            Kernel k = parse(R"(kernel "arg" {
              buffer 0: f32[)" +
                             e + R"(] read
              buffer 1: i64[1] written
              nest { loop i0 < 1
                phase { loop i1 < )" +
                             e + R"( vector
                  %0: f32 = load 0[i1]
                  %1: i64 = index [i1]
                  reduce )" + op +
                             R"( f32 %0 index %1 }
                phase { %0: i64 = reduced(0, 0, 1)
                  store 1[i0] = %0 } } })");
            CompiledKernel compiled(k, codegen::host());
            const bool max = std::string(op) == "argmax";
            std::vector<float> x(static_cast<std::size_t>(n), 0.f);
            std::int64_t at = -1;
            void* buffers[] = {x.data(), &at};
            compiled.run(buffers, {});
            EXPECT_EQ(at, 0);
            x[static_cast<std::size_t>(n) - 2] = x[static_cast<std::size_t>(n) - 1] =
                max ? 1.f : -1.f;
            compiled.run(buffers, {});
            EXPECT_EQ(at, n - 2);
            x[5] = x[7] = std::numeric_limits<float>::quiet_NaN();
            compiled.run(buffers, {});
            EXPECT_EQ(at, 5);
            std::fill(x.begin(), x.end(), (max ? -1 : 1) * std::numeric_limits<float>::infinity());
            compiled.run(buffers, {});
            EXPECT_EQ(at, 0);
        }
}

TEST(Nest, LongSumsAreAccurate) {
    const std::size_t n = 10'000'000;
    Kernel k = parse(R"(kernel "sum" { sizes s0
      buffer 0: f32[s0] read
      buffer 1: f32[1] written
      nest { loop i0 < 1
        phase { loop i1 < s0 vector
          %0: f32 = load 0[i1]
          reduce sum f32 %0 }
        phase { %0: f32 = reduced(0, 0, 0)
          store 1[i0] = %0 } } })");
    CompiledKernel compiled(k, codegen::host());
    std::vector<float> x(n);
    std::mt19937 random(3);
    std::uniform_real_distribution<float> uniform;
    for (float& v : x) v = uniform(random);
    const double exact = std::accumulate(x.begin(), x.end(), 0.0);
    float sum = 0;
    void* buffers[] = {x.data(), &sum};
    const std::int64_t sizes[] = {static_cast<std::int64_t>(n)};
    compiled.run(buffers, sizes);
    EXPECT_LT(std::abs(sum - exact) / exact, 2e-7);
}

TEST(Nest, TransposedLoadsGoThroughTiles) {
    for (const char* type : {"f32", "f64", "bf16", "i8", "i64", "c64", "b8"})
        for (auto [rows, columns] :
             {std::pair{16, 16}, {32, 8}, {5, 7}, {64, 48}, {33, 50}, {300, 19}}) {
            const std::string r = std::to_string(rows), c = std::to_string(columns);
            const std::string n = std::to_string(rows * columns), t = type;
            compare_with_interpreter(parse(R"(kernel "transpose" {
              buffer 0: )" + t + "[" + std::to_string(2 * rows * columns) +
                                           R"(] read
              buffer 1: )" + t + "[" + n + R"(] read
              buffer 2: )" + t + "[" + std::to_string(2 * rows * columns) +
                                           R"(] written
              nest { loop i2 < 2
                loop i0 < )" + r + R"(
                loop i1 < )" + c + R"( vector
                phase { %0: )" + t + " = load 0[i0 + " +
                                           r + "*i1 + " + n + R"(*i2]
                  %1: )" + t + " = load 1[" +
                                           c + R"(*i0 + i1]
                  %2: )" + t + R"( = add(%0, %1)
                  store 2[)" + c + "*i0 + i1 + " +
                                           n + "*i2] = %2 } } }"));
        }
}

TEST(Nest, TransposedLoadsAtABoundIndex) {
    compare_with_interpreter(parse(R"(kernel "take" {
      buffer 0: i64[3] read
      buffer 1: f32[14336] read
      buffer 2: f32[6144] written
      nest { loop i2 < 3
        loop i0 < 128
        loop i1 < 16 vector
        phase { %0: i64 = load 0[i2]
          %1: i64 = bind x0 %0 extent [7] imm 1
          %2: f32 = load 1[i0 + 896*i1 + 128*x0]
          store 2[48*i0 + 16*i2 + i1] = %2 } } })"),
                             {.index_bound = 7});
}

TEST(Nest, SeveralNestsAreSeveralLaunches) {
    Kernel k = parse(R"(kernel "two" {
      buffer 0: f32[100] read
      buffer 1: f32[100] read written
      buffer 2: f32[100] written
      nest { loop i0 < 100 vector
        phase { %0: f32 = load 0[i0]
          %1: f32 = neg(%0)
          store 1[i0] = %1 } }
      nest { loop i1 < 100 vector
        phase { %0: f32 = load 1[99 - i1]
          store 2[i1] = %0 } } })");
    EXPECT_EQ(CompiledKernel(k, codegen::host()).code().launches.size(), 2u);
    compare_with_interpreter(k);
}

TEST(Nest, OtherInstructionSets) {
    for (const char* name : {"x86-64-v2", "x86-64-v3", "x86-64-v4"}) {
        const codegen::TargetInfo target = codegen::target_named(name);
        if (target.avx512f && !codegen::host().avx512f) continue;
        if (target.avx2 && !codegen::host().avx2) continue;
        for (const char* type : {"f32", "bf16", "i8", "i64", "c64"})
            compare_with_interpreter(parse(pointwise(77, type,
                                                     "%2: " + std::string(type) +
                                                         " = add(%0, %1)\n store 2[76 - i0] = %2")),
                                     {.target = target});
    }
}

}  // namespace
}  // namespace ingot::testing
