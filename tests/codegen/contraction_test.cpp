// Generated contractions against plain loops in double precision: many odd shapes, every way the
// operands can lie, epilogues, symbolic sizes, splits of the work.
#include "codegen/contraction/contraction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <random>

#include "codegen/contraction/decisions.h"
#include "codegen/llvm/jit.h"
#include "ir/error.h"

namespace ingot::codegen {
namespace {

/// At the start of a cache's line, where streaming stores are possible.
template <typename T>
struct LineAllocator {
    using value_type = T;
    LineAllocator() = default;
    template <typename U>
    explicit LineAllocator(const LineAllocator<U>&) {}
    T* allocate(std::size_t n) {
        return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64}));
    }
    void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t{64}); }
    bool operator==(const LineAllocator&) const = default;
};
using Data = std::vector<float, LineAllocator<float>>;

Data random_data(std::int64_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    Data data(static_cast<std::size_t>(count));
    for (float& x : data) x = uniform(generator);
    return data;
}

/// Builds a kernel's Contraction by hand, as the scheduler would.
struct Builder {
    ExprPool pool;
    Kernel kernel;
    Contraction c;

    Loop loop(const char* name, Expr extent) { return {pool.index(name, extent), extent}; }
    std::int32_t buffer(bool written = false, DType dtype = DType::F32) {
        kernel.buffers.push_back({dtype, 0, BufferScope::Argument, !written, written});
        return static_cast<std::int32_t>(kernel.buffers.size()) - 1;
    }
    static Inst load(std::int32_t buffer, Expr offset, InstId mask = kNone) {
        Inst i;
        i.kind = InstKind::Load;
        i.buffer = buffer;
        i.offset = offset;
        i.mask = mask;
        i.constant = 0.0;
        return i;
    }
    static Inst prim(Prim p, std::vector<InstId> operands, DType dtype = DType::F32) {
        Inst i;
        i.prim = p;
        i.operands = std::move(operands);
        i.dtype = dtype;
        return i;
    }
    static Inst constant(double value) {
        Inst i;
        i.kind = InstKind::Constant;
        i.constant = value;
        return i;
    }
    static Inst index(Expr e) {
        Inst i;
        i.kind = InstKind::Index;
        i.offset = e;
        i.dtype = DType::I64;
        return i;
    }
    static Inst accumulator() {
        Inst i;
        i.kind = InstKind::Accumulator;
        return i;
    }
    void store(std::int32_t buffer, Expr offset, InstId value) {
        c.epilogue.stores.push_back({buffer, offset, value, kNone, StoreMode::Write});
    }
    const Kernel& finish() {
        kernel.contraction = std::make_shared<Contraction>(c);
        return kernel;
    }
};

const Jit& jit() {
    static const Jit instance(host(), {.optimization = 2, .verify = true});
    return instance;
}

/// Compiles and runs, the work split into `parts` calls.
void run(const Kernel& kernel, std::vector<void*> pointers, std::vector<std::int64_t> sizes = {},
         int parts = 1, const TargetInfo& target = jit().target()) {
    IrModule m = jit().make_module("test");
    const KernelCode code = emit_contraction(*m.module, kernel, target, "kernel");
    const auto loaded = jit().load(jit().compile(std::move(m)));
    ASSERT_EQ(code.launches.size(), 1u);
    const Launch& launch = code.launches[0];
    auto* f = loaded->function<std::remove_pointer_t<KernelFn>>(launch.symbol);
    auto value = [&](Expr e) {
        return evaluate(e, [&](Expr s) {
            for (std::size_t n = 0; n < kernel.sizes.size(); ++n)
                if (kernel.sizes[n] == s) return sizes[n];
            throw InternalError("size");
        });
    };
    const std::int64_t work = value(launch.work);
    const std::int64_t bytes = value(launch.scratch_bytes);
    std::int64_t error = 0;
    for (int p = 0; p < parts; ++p) {
        // A fence of known bytes behind scratch, and scratch full of NaN.
        void* scratch = std::aligned_alloc(64, static_cast<std::size_t>((bytes + 127) / 64 * 64));
        std::memset(scratch, 0xff, static_cast<std::size_t>(bytes) + 64);
        f(pointers.data(), sizes.data(), work * p / parts, work * (p + 1) / parts, scratch, &error);
        const auto* fence = static_cast<const unsigned char*>(scratch) + bytes;
        for (int n = 0; n < 64; ++n) ASSERT_EQ(fence[n], 0xff);
        std::free(scratch);
    }
    EXPECT_EQ(error, 0);
}

void expect_close(const Data& actual, const std::vector<double>& expected, double tolerance) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t n = 0; n < actual.size(); ++n) {
        if (std::isfinite(expected[n]))
            ASSERT_NEAR(actual[n], expected[n], tolerance * (1 + std::abs(expected[n])))
                << "at " << n;
        else if (std::isnan(expected[n]))
            ASSERT_TRUE(std::isnan(actual[n])) << "at " << n;
        else
            ASSERT_EQ(actual[n], expected[n]) << "at " << n;
    }
}

/// B [k, n] as panels.
Data pack_panels(const Data& b, std::int64_t k, std::int64_t n, std::int64_t panel) {
    const std::int64_t panels = (n + panel - 1) / panel;
    Data packed(static_cast<std::size_t>(panels * k * panel), 0.0f);
    for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < n; ++j)
            packed[static_cast<std::size_t>(((j / panel) * k + i) * panel + j % panel)] =
                b[static_cast<std::size_t>(i * n + j)];
    return packed;
}

enum class Right { Packed, Rows, Transposed, Strided };
enum class Left { Rows, Transposed, Padded, Doubled };

/// out = relu(A B + bias) + residual, over all ways of laying out A and B. Returns out.
Data check_matmul(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, Left left,
                  Right right, bool symbolic, int parts,
                  const TargetInfo& target = jit().target()) {
    SCOPED_TRACE(testing::Message()
                 << batch << "x" << m << "x" << n << "x" << k << " left " << static_cast<int>(left)
                 << " right " << static_cast<int>(right) << " symbolic " << symbolic);
    Builder f;
    Expr em = m;
    if (symbolic) {
        em = f.pool.symbol("s0", {1, 100000});
        f.kernel.sizes = {em};
    }
    const Loop lb = f.loop("b", batch), lm = f.loop("m", em), ln = f.loop("n", n),
               lk = f.loop("k", k);
    f.c.batch = {lb};
    f.c.m = {lm};
    f.c.n = {ln};
    f.c.k = {lk};
    const auto a = f.buffer(), b = f.buffer(), bias = f.buffer(), residual = f.buffer(),
               out = f.buffer(true);
    const std::int64_t lda = left == Left::Padded ? k + 5 : k;
    const bool a_transposed = left == Left::Transposed;
    auto a_at = [&](std::int64_t i, std::int64_t r, std::int64_t x) {
        return a_transposed ? (i * k + x) * m + r : (i * m + r) * lda + x;
    };
    f.c.a_insts = {Builder::load(a, a_transposed ? (lb.var * k + lk.var) * em + lm.var
                                                 : (lb.var * em + lm.var) * lda + lk.var)};
    if (left == Left::Doubled) f.c.a_insts.push_back(Builder::prim(Prim::Add, {0, 0}));
    const Data b_plain = random_data(batch * k * n, 2);
    Data b_data = b_plain;
    switch (right) {
        case Right::Packed: {
            const int panel = panel_width(n, DType::F32, vector_target(jit().target()));
            f.c.b_panel = panel;
            const std::int64_t size = (n + panel - 1) / panel * panel * k;
            b_data.clear();
            for (std::int64_t i = 0; i < batch; ++i) {
                const Data one(b_plain.begin() + i * k * n, b_plain.begin() + (i + 1) * k * n);
                const Data packed = pack_panels(one, k, n, panel);
                b_data.insert(b_data.end(), packed.begin(), packed.end());
            }
            f.c.b_insts = {Builder::load(b, lb.var * size + floor_div(ln.var, panel) * (k * panel) +
                                                lk.var * panel + mod(ln.var, panel))};
            break;
        }
        case Right::Rows:
            f.c.b_insts = {Builder::load(b, (lb.var * k + lk.var) * n + ln.var)};
            break;
        case Right::Transposed:
            for (std::int64_t i = 0; i < batch * k * n; ++i) {
                const std::int64_t g = i / (k * n), x = i / n % k, j = i % n;
                b_data[static_cast<std::size_t>((g * n + j) * k + x)] =
                    b_plain[static_cast<std::size_t>(i)];
            }
            f.c.b_insts = {Builder::load(b, (lb.var * n + ln.var) * k + lk.var)};
            break;
        case Right::Strided:
            b_data.assign(b_plain.size() * 2, 7.0f);
            for (std::size_t i = 0; i < b_plain.size(); ++i) b_data[2 * i] = b_plain[i];
            f.c.b_insts = {Builder::load(b, ((lb.var * k + lk.var) * n + ln.var) * 2)};
            break;
    }
    const Expr at = (lb.var * em + lm.var) * n + ln.var;
    f.c.epilogue.insts = {Builder::accumulator(),           Builder::load(bias, ln.var),
                          Builder::prim(Prim::Add, {0, 1}), Builder::prim(Prim::Relu, {2}),
                          Builder::load(residual, at),      Builder::prim(Prim::Add, {3, 4})};
    f.store(out, at, 5);

    Data a_data = random_data(batch * std::max(m * lda, m * k), 1);
    Data bias_data = random_data(n, 3), residual_data = random_data(batch * m * n, 4);
    Data out_data(static_cast<std::size_t>(batch * m * n), 99.0f);
    std::vector<double> expected;
    for (std::int64_t i = 0; i < batch; ++i)
        for (std::int64_t r = 0; r < m; ++r)
            for (std::int64_t j = 0; j < n; ++j) {
                double sum = 0;
                for (std::int64_t x = 0; x < k; ++x) {
                    double v = a_data[static_cast<std::size_t>(a_at(i, r, x))];
                    if (left == Left::Doubled) v += v;
                    sum += v * b_plain[static_cast<std::size_t>((i * k + x) * n + j)];
                }
                sum += bias_data[static_cast<std::size_t>(j)];
                expected.push_back(std::max(sum, 0.0) +
                                   residual_data[static_cast<std::size_t>((i * m + r) * n + j)]);
            }
    run(f.finish(),
        {a_data.data(), b_data.data(), bias_data.data(), residual_data.data(), out_data.data()},
        {m}, parts, target);
    expect_close(out_data, expected, 1e-5 * std::sqrt(static_cast<double>(k)));
    return out_data;
}

TEST(Contraction, MatmulOfManyShapes) {
    std::mt19937 generator(7);
    auto up_to = [&](std::int64_t n) {
        return static_cast<std::int64_t>(generator() % static_cast<unsigned>(n)) + 1;
    };
    for (int round = 0; round < 24; ++round) {
        const auto left = static_cast<Left>(generator() % 4);
        const auto right = static_cast<Right>(generator() % 4);
        const std::int64_t batch = round % 3 == 0 ? up_to(3) : 1;
        check_matmul(batch, up_to(round % 2 ? 40 : 5), up_to(round % 5 ? 100 : 300),
                     up_to(round % 4 ? 70 : 3), left, right, round % 2 == 0,
                     static_cast<int>(up_to(3)));
        if (HasFatalFailure()) return;
    }
}

TEST(Contraction, SeveralBlocksOfRowsAndPackedLeft) {
    for (const Left left : {Left::Rows, Left::Transposed, Left::Doubled}) {
        check_matmul(1, 119, 40, 20, left, Right::Packed, false, 2);  // a padded last tile
        check_matmul(1, 49, 150, 33, left, Right::Packed, false, 2);
    }
    check_matmul(1, 700, 130, 512, Left::Rows, Right::Packed, false, 3);
    check_matmul(1, 301, 300, 64, Left::Rows, Right::Rows, true, 2);
    check_matmul(2, 65, 257, 33, Left::Padded, Right::Transposed, true, 5);
}

// Where the first cache has room for a part of a panel, tiles pass over it part by part; the sums
// are the same to the last bit.
TEST(Contraction, PartsOfPanelsInTheFirstCache) {
    TargetInfo small = jit().target(), large = small;
    small.l1_bytes = 16 << 10;
    large.l1_bytes = 256 << 10;
    auto check = [&](std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k, Left left,
                     bool symbolic) {
        const Data whole = check_matmul(batch, m, n, k, left, Right::Packed, symbolic, 2, small);
        const Data parts = check_matmul(batch, m, n, k, left, Right::Packed, symbolic, 3, large);
        EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0);
    };
    for (const Left left : {Left::Rows, Left::Transposed, Left::Padded, Left::Doubled}) {
        check(1, 119, 40, 300, left, false);
        check(2, 37, 70, 513, left, true);
    }
    check(1, 1100, 33, 512, Left::Rows, false);
    check(1, 31, 1700, 257, Left::Rows, false);  // so many panels that rows are packed
}

/// f32 as three bf16 each where the processor has matrix units; on others the same shapes by
/// vectors.
TEST(Contraction, SplitProducts) {
    for (const Left left : {Left::Rows, Left::Transposed, Left::Padded, Left::Doubled})
        for (const Right right : {Right::Packed, Right::Rows, Right::Transposed, Right::Strided}) {
            check_matmul(2, 69, 130, 96, left, right, false, 3);
            check_matmul(1, 197, 75, 301, left, right, true, 2);
        }
    check_matmul(1, 1100, 96, 512, Left::Rows, Right::Packed, false, 2);
    check_matmul(1, 32, 640, 2048, Left::Rows, Right::Rows, false, 1);
}

constexpr std::int64_t kStrangeM = 70, kStrangeN = 66, kStrangeK = 160;

/// A product of these two against sums in f64; what is too large for f32 must be infinite.
void check_strange(const Data& left, const Data& right) {
    constexpr std::int64_t kM = kStrangeM, kN = kStrangeN, kK = kStrangeK;
    const float inf = std::numeric_limits<float>::infinity();
    Builder f;
    const Loop lm = f.loop("m", kM), ln = f.loop("n", kN), lk = f.loop("k", kK);
    f.c.m = {lm};
    f.c.n = {ln};
    f.c.k = {lk};
    const auto a = f.buffer(), b = f.buffer(), out = f.buffer(true);
    f.c.a_insts = {Builder::load(a, lm.var * kK + lk.var)};
    f.c.b_insts = {Builder::load(b, lk.var * kN + ln.var)};
    f.c.epilogue.insts = {Builder::accumulator()};
    f.store(out, lm.var * kN + ln.var, 0);
    Data a_data = left, b_data = right, result(kM * kN, 99.0F);
    run(f.finish(), {a_data.data(), b_data.data(), result.data()}, {}, 2);
    for (std::int64_t i = 0; i < kM; ++i)
        for (std::int64_t j = 0; j < kN; ++j) {
            double sum = 0, size = 0;
            for (std::int64_t x = 0; x < kK; ++x) {
                const double p = static_cast<double>(left[i * kK + x]) * right[x * kN + j];
                sum += p;
                size += std::abs(p);
            }
            const float got = result[i * kN + j];
            if (std::isfinite(sum) && std::abs(sum) < 3.4e38)
                ASSERT_NEAR(got, sum, 1e-6 * size + 1e-42) << i << ", " << j;
            else if (std::isnan(sum))
                ASSERT_TRUE(std::isnan(got)) << i << ", " << j;
            else
                ASSERT_EQ(got, sum > 0 ? inf : -inf) << i << ", " << j;
        }
}

/// What parts of bf16 cannot say: infinities, no numbers, and what is too small for them.
TEST(Contraction, SplitProductsOfStrangeNumbers) {
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    struct Case {
        float left, right;  // at one place of A's row 37 and at the same k of all of B
        float scale;        // of everything else in A
    };
    for (const Case& c : {Case{inf, 0.5F, 1}, Case{-inf, 2.0F, 1}, Case{inf, 0.0F, 1},
                          Case{nan, 1.0F, 1}, Case{1.0F, inf, 1}, Case{3e38F, 4.0F, 1},
                          Case{-3.4e38F, 0.25F, 1}, Case{0.5F, 3.4e38F, 1}, Case{1e-30F, 1e-9F, 0},
                          Case{3e-39F, 0.75F, 0}, Case{0.3F, 3e-39F, 0}, Case{0, 0, 0},
                          Case{1.7e-20F, 1.1e-12F, 1e-20F}, Case{1, 1, 1e-36F}}) {
        SCOPED_TRACE(testing::Message() << c.left << " * " << c.right << " scale " << c.scale);
        Data left = random_data(kStrangeM * kStrangeK, 1);
        Data right = random_data(kStrangeK * kStrangeN, 2);
        for (float& x : left) x *= c.scale;
        constexpr std::int64_t kRow = 37, kPlace = 41;
        left[kRow * kStrangeK + kPlace] = c.left;
        for (std::int64_t j = 0; j < kStrangeN; ++j) right[kPlace * kStrangeN + j] = c.right;
        check_strange(left, right);
        if (HasFatalFailure()) return;
    }
}

/// Gradients may have any size, and rows of zeros beside them.
TEST(Contraction, SplitProductsOfAllMagnitudes) {
    for (const int left_scale : {-140, -110, -80, -40, 60})
        for (const int right_scale : {-110, -40, 0, 30}) {
            SCOPED_TRACE(testing::Message() << left_scale << " " << right_scale);
            Data left = random_data(kStrangeM * kStrangeK, 3);
            Data right = random_data(kStrangeK * kStrangeN, 4);
            for (float& x : left) x = std::ldexp(x, left_scale);
            for (float& x : right) x = std::ldexp(x, right_scale);
            std::fill_n(left.begin() + 20 * kStrangeK, 30 * kStrangeK, 0.0F);
            check_strange(left, right);
            if (HasFatalFailure()) return;
        }
}

TEST(Contraction, OneRowAndOneColumn) {
    for (const Right right : {Right::Packed, Right::Rows, Right::Transposed, Right::Strided}) {
        check_matmul(1, 1, 1, 1, Left::Rows, right, false, 1);
        check_matmul(1, 1, 50, 100, Left::Rows, right, false, 1);
        check_matmul(1, 50, 1, 100, Left::Rows, right, false, 1);
    }
}

// ---- other types ----

std::uint16_t to_bf16(float x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, 4);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_bf16(std::uint16_t x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float result = 0;
    std::memcpy(&result, &bits, 4);
    return result;
}

/// out = bf16(A B) with everything in bf16 but the sum; several A, `gap` elements between them.
void check_bf16(std::int64_t m, std::int64_t n, std::int64_t k, Right right, std::int64_t batch = 1,
                std::int64_t gap = 0) {
    SCOPED_TRACE(testing::Message()
                 << m << "x" << n << "x" << k << " right " << static_cast<int>(right));
    Builder f;
    const std::int64_t apart = m * k + gap;
    const Loop lb = f.loop("b", batch);
    if (batch > 1) f.c.batch = {lb};
    const Expr of_batch = batch > 1 ? lb.var : Expr(0);
    const Loop lm = f.loop("m", m), ln = f.loop("n", n), lk = f.loop("k", k);
    f.c.m = {lm};
    f.c.n = {ln};
    f.c.k = {lk};
    const auto a = f.buffer(false, DType::BF16), b = f.buffer(false, DType::BF16),
               out = f.buffer(true, DType::BF16);
    auto load = [](std::int32_t buffer, Expr offset) {
        Inst i = Builder::load(buffer, offset);
        i.dtype = DType::BF16;
        return i;
    };
    f.c.a_insts = {load(a, of_batch * apart + lm.var * k + lk.var)};
    const Data left = random_data(batch * apart, 1), plain = random_data(k * n, 2);
    Data laid = plain;
    const int panel = panel_width(n, DType::F32, vector_target(jit().target()));
    if (right == Right::Packed) {
        f.c.b_panel = panel;
        laid = pack_panels(plain, k, n, panel);
        f.c.b_insts = {
            load(b, floor_div(ln.var, panel) * (k * panel) + lk.var * panel + mod(ln.var, panel))};
    } else if (right == Right::Rows) {
        f.c.b_insts = {load(b, lk.var * n + ln.var)};
    } else {
        for (std::int64_t i = 0; i < k * n; ++i)
            laid[static_cast<std::size_t>(i % n * k + i / n)] = plain[static_cast<std::size_t>(i)];
        f.c.b_insts = {load(b, ln.var * k + lk.var)};
    }
    f.c.epilogue.insts = {Builder::accumulator(), Builder::prim(Prim::Convert, {0}, DType::BF16)};
    f.store(out, (of_batch * m + lm.var) * n + ln.var, 1);
    std::vector<std::uint16_t> a_data, b_data, result(static_cast<std::size_t>(batch * m * n));
    for (const float x : left) a_data.push_back(to_bf16(x));
    for (const float x : laid) b_data.push_back(to_bf16(x));
    run(f.finish(), {a_data.data(), b_data.data(), result.data()}, {}, 2);
    for (std::int64_t r = 0; r < batch * m; ++r)
        for (std::int64_t j = 0; j < n; ++j) {
            const std::int64_t row = r / m * apart + r % m * k;
            double sum = 0, size = 0;
            for (std::int64_t x = 0; x < k; ++x) {
                const double term =
                    static_cast<double>(from_bf16(a_data[static_cast<std::size_t>(row + x)])) *
                    from_bf16(to_bf16(plain[static_cast<std::size_t>(x * n + j)]));
                sum += term;
                size += std::abs(term);
            }
            ASSERT_NEAR(from_bf16(result[static_cast<std::size_t>(r * n + j)]), sum,
                        std::abs(sum) / 256 + size * 1e-6)
                << r << " " << j;
        }
}

TEST(Contraction, BFloat16) {
    for (const Right right : {Right::Packed, Right::Rows, Right::Transposed}) {
        check_bf16(30, 70, 64, right);
        check_bf16(13, 32, 30, right);
        check_bf16(5, 9, 15, right);  // odd k: no pairs
        check_bf16(1, 300, 128, right);
        // For matrix units: several tiles, blocks of k and a rest of each.
        check_bf16(70, 130, 96, right);
        check_bf16(197, 75, 576, right);
        check_bf16(1100, 64, 608, right);
        check_bf16(47, 33, 302, right);
        check_bf16(30, 40, 64, right, 3, 1);  // no whole number of pairs apart
    }
}

TEST(Contraction, Float64) {
    const std::int64_t m = 29, n = 37, k = 41;
    Builder f;
    const Loop lm = f.loop("m", m), ln = f.loop("n", n), lk = f.loop("k", k);
    f.c.m = {lm};
    f.c.n = {ln};
    f.c.k = {lk};
    f.c.accumulate = DType::F64;
    const auto a = f.buffer(false, DType::F64), b = f.buffer(false, DType::F64),
               out = f.buffer(true, DType::F64);
    auto f64 = [](Inst i) {
        i.dtype = DType::F64;
        return i;
    };
    f.c.a_insts = {f64(Builder::load(a, lm.var * k + lk.var))};
    f.c.b_insts = {f64(Builder::load(b, lk.var * n + ln.var))};
    f.c.epilogue.insts = {f64(Builder::accumulator())};
    f.store(out, lm.var * n + ln.var, 0);
    const Data left = random_data(m * k, 1), right = random_data(k * n, 2);
    std::vector<double> a_data(left.begin(), left.end()), b_data(right.begin(), right.end()),
        result(static_cast<std::size_t>(m * n));
    run(f.finish(), {a_data.data(), b_data.data(), result.data()}, {}, 3);
    for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t x = 0; x < k; ++x)
                sum += a_data[static_cast<std::size_t>(r * k + x)] *
                       b_data[static_cast<std::size_t>(x * n + j)];
            ASSERT_NEAR(result[static_cast<std::size_t>(r * n + j)], sum, 1e-13);
        }
}

/// A convolution as the scheduler writes it: channels-last input, weight panels, zero padding.
struct Conv {
    std::int64_t images, height, width, in, out, kernel, stride, pad, dilation, groups;
    bool channels_last = true;
};

/// How many results a dim has.
std::int64_t conv_results(const Conv& v, std::int64_t points) {
    return (points + 2 * v.pad - (v.dilation * (v.kernel - 1) + 1)) / v.stride + 1;
}

Kernel conv_kernel(Builder& f, const Conv& v, int panel) {
    const std::int64_t oh = conv_results(v, v.height), ow = conv_results(v, v.width);
    const std::int64_t gi = v.in / v.groups, go = v.out / v.groups;
    const Loop g = f.loop("g", v.groups), n = f.loop("n", v.images), y = f.loop("y", oh),
               x = f.loop("x", ow), ky = f.loop("ky", v.kernel), kx = f.loop("kx", v.kernel),
               ci = f.loop("c", gi), co = f.loop("o", go);
    const Expr group = v.groups == 1 ? Expr(0) : g.var;
    if (v.groups > 1) f.c.batch = {g};
    f.c.m = {n, y, x};
    f.c.n = {co};
    f.c.k = {ky, kx, ci};
    const auto a = f.buffer(), b = f.buffer(), bias = f.buffer(), out = f.buffer(true);
    f.kernel.buffers[static_cast<std::size_t>(out)].elements = v.images * oh * ow * v.out;
    const Expr row = y.var * v.stride + ky.var * v.dilation - v.pad;
    const Expr column = x.var * v.stride + kx.var * v.dilation - v.pad;
    const Expr channel = group * gi + ci.var;
    using B = Builder;
    f.c.a_insts = {
        B::index(row),
        B::index(column),
        B::index(0),
        B::index(v.height),
        B::index(v.width),
        B::prim(Prim::Ge, {0, 2}, DType::Bool),
        B::prim(Prim::Lt, {0, 3}, DType::Bool),
        B::prim(Prim::Ge, {1, 2}, DType::Bool),
        B::prim(Prim::Lt, {1, 4}, DType::Bool),
        B::prim(Prim::LogicalAnd, {5, 6}, DType::Bool),
        B::prim(Prim::LogicalAnd, {7, 8}, DType::Bool),
        B::prim(Prim::LogicalAnd, {9, 10}, DType::Bool),
        B::load(a,
                v.channels_last ? ((n.var * v.height + row) * v.width + column) * v.in + channel
                                : ((n.var * v.in + channel) * v.height + row) * v.width + column,
                11)};
    const std::int64_t k = v.kernel * v.kernel * gi;
    const std::int64_t panels = (go + panel - 1) / panel;
    f.c.b_panel = panel;
    f.c.b_insts = {
        B::load(b, group * (panels * k * panel) + floor_div(co.var, panel) * (k * panel) +
                       ((ky.var * v.kernel + kx.var) * gi + ci.var) * panel + mod(co.var, panel))};
    f.c.epilogue.insts = {B::accumulator(), B::load(bias, group * go + co.var),
                          B::prim(Prim::Add, {0, 1}), B::prim(Prim::Relu, {2})};
    f.store(out, ((n.var * oh + y.var) * ow + x.var) * v.out + group * go + co.var, 3);
    return f.finish();
}

/// `strange`: put among the input's numbers, at even distances.
void check_conv(const Conv& v, const TargetInfo& target = jit().target(),
                const Data& strange = {}) {
    SCOPED_TRACE(testing::Message() << v.images << "x" << v.height << "x" << v.width << " " << v.in
                                    << "->" << v.out << " kernel " << v.kernel << " stride "
                                    << v.stride << " pad " << v.pad << " groups " << v.groups);
    const std::int64_t oh = conv_results(v, v.height), ow = conv_results(v, v.width);
    const std::int64_t gi = v.in / v.groups, go = v.out / v.groups;
    const std::int64_t k = v.kernel * v.kernel * gi;
    const int panel = panel_width(go, DType::F32, vector_target(target));
    Builder f;
    const Kernel kernel = conv_kernel(f, v, panel);
    Data input = random_data(v.images * v.height * v.width * v.in, 1);
    for (std::size_t i = 0; i < strange.size(); ++i)
        input[(i + 1) * input.size() / (strange.size() + 2)] = strange[i];
    const Data weight = random_data(v.groups * k * go, 2);  // [group][ky][kx][in][out]
    Data bias_data = random_data(v.out, 3), packed;
    for (std::int64_t i = 0; i < v.groups; ++i) {
        const Data one(weight.begin() + i * k * go, weight.begin() + (i + 1) * k * go);
        const Data p = pack_panels(one, k, go, panel);
        packed.insert(packed.end(), p.begin(), p.end());
    }
    Data result(static_cast<std::size_t>(v.images * oh * ow * v.out), 99.0f);
    std::vector<double> expected(result.size());
    for (std::int64_t i = 0; i < v.images * oh * ow * v.out; ++i) {
        const std::int64_t o = i % v.out, px = i / v.out % ow, py = i / v.out / ow % oh,
                           im = i / v.out / ow / oh, gr = o / go;
        double sum = bias_data[static_cast<std::size_t>(o)];
        for (std::int64_t wy = 0; wy < v.kernel; ++wy)
            for (std::int64_t wx = 0; wx < v.kernel; ++wx) {
                const std::int64_t iy = py * v.stride + wy * v.dilation - v.pad;
                const std::int64_t ix = px * v.stride + wx * v.dilation - v.pad;
                if (iy < 0 || iy >= v.height || ix < 0 || ix >= v.width) continue;
                for (std::int64_t ch = 0; ch < gi; ++ch) {
                    const std::int64_t from =
                        v.channels_last
                            ? ((im * v.height + iy) * v.width + ix) * v.in + gr * gi + ch
                            : ((im * v.in + gr * gi + ch) * v.height + iy) * v.width + ix;
                    sum += static_cast<double>(input[static_cast<std::size_t>(from)]) *
                           weight[static_cast<std::size_t>(
                               (gr * k + (wy * v.kernel + wx) * gi + ch) * go + o % go)];
                }
            }
        // As far as f32 goes; no number stays what it is.
        expected[static_cast<std::size_t>(i)] = std::max(double{static_cast<float>(sum)}, 0.0);
    }
    run(kernel, {input.data(), packed.data(), bias_data.data(), result.data()}, {}, 2, target);
    expect_close(result, expected, 1e-5 * std::sqrt(static_cast<double>(k)));
}

TEST(Contraction, Convolutions) {
    check_conv({1, 14, 14, 32, 64, 1, 1, 0, 1, 1});
    check_conv({2, 13, 11, 24, 40, 1, 2, 0, 1, 1});
    check_conv({1, 14, 14, 32, 64, 3, 1, 1, 1, 1});
    check_conv({2, 9, 10, 17, 33, 3, 2, 1, 1, 1});
    check_conv({1, 12, 12, 16, 48, 3, 1, 2, 2, 1});
    check_conv({1, 30, 30, 3, 64, 7, 2, 3, 1, 1});
    check_conv({1, 7, 9, 64, 64, 3, 1, 1, 1, 8});
    check_conv({1, 30, 30, 3, 64, 7, 2, 3, 1, 1, false});
    check_conv({1, 25, 25, 3, 64, 7, 2, 3, 1, 1, false});  // the last tile has one row, at the edge
    check_conv({1, 5, 5, 4, 6, 5, 1, 2, 1, 2, false});
    // Several blocks of rows that end within rows of images.
    check_conv({3, 29, 31, 48, 40, 3, 1, 1, 1, 1});
    check_conv({3, 47, 45, 40, 70, 3, 2, 1, 1, 1});
    // Tiles that lie at the border, or outside, as a whole.
    check_conv({8, 7, 7, 64, 64, 3, 1, 1, 1, 1});
    check_conv({9, 7, 7, 16, 36, 3, 2, 1, 1, 1});
    check_conv({1, 12, 12, 32, 64, 3, 1, 1, 1, 1});
    check_conv({8, 5, 5, 16, 32, 5, 1, 4, 1, 1});
    check_conv({6, 3, 3, 16, 32, 3, 1, 6, 1, 1});
    check_conv({4, 7, 7, 32, 64, 3, 1, 1, 1, 4});
}

/// Of small images with a border, tiles are rows of all images, and pass over what lies outside.
TEST(Contraction, BordersArePassedOver) {
    TargetInfo target = target_named("znver4");
    target.l2_bytes = 1 << 20;
    target.l3_bytes = 32 << 20;
    const auto decided = [&](const Conv& v) {
        Builder f;
        return decide(conv_kernel(f, v, panel_width(v.out, DType::F32, vector_target(target))),
                      target);
    };
    const Decisions small = decided({8, 14, 14, 256, 256, 3, 2, 1, 1, 1});
    EXPECT_TRUE(small.skips);
    EXPECT_TRUE(small.rows_of_images);
    EXPECT_FALSE(small.pack_a);
    EXPECT_FALSE(decided({8, 7, 7, 512, 512, 1, 1, 0, 1, 1}).skips);
    EXPECT_FALSE(decided({8, 56, 56, 64, 64, 5, 1, 2, 1, 1}).skips);
    // So many images' rows that the second cache does not hold them.
    EXPECT_FALSE(decided({64, 14, 14, 256, 256, 3, 2, 1, 1, 1}).rows_of_images);
    EXPECT_FALSE(small.streamed.back());
    EXPECT_TRUE(decided({8, 112, 112, 64, 64, 3, 1, 1, 1, 1}).streamed.back());
}

/// The host by vectors, on which minimal filtering is worth it.
TargetInfo by_vectors() {
    TargetInfo target = jit().target();
    target.amx_bf16 = false;
    target.l2_bytes = 1 << 20;
    target.cores = 2;
    return target;
}

bool is_filtered(const Conv& v, const TargetInfo& target) {
    Builder f;
    const int panel = panel_width(v.out, DType::F32, vector_target(target));
    return decide(conv_kernel(f, v, panel), target).winograd.has_value();
}

/// Four results at a time: odd sizes, blocks over several images, more channels than are in use
/// together, a rest of columns, images without a border and with a wide one.
TEST(Contraction, MinimalFiltering) {
    const TargetInfo target = by_vectors();
    for (const Conv& v :
         {Conv{1, 14, 14, 32, 64, 3, 1, 1, 1, 1}, Conv{3, 13, 17, 48, 64, 3, 1, 1, 1, 1},
          Conv{2, 12, 11, 64, 40, 3, 1, 1, 1, 1}, Conv{8, 7, 7, 64, 64, 3, 1, 1, 1, 1},
          Conv{1, 16, 15, 64, 32, 3, 1, 0, 1, 1}, Conv{2, 17, 14, 32, 32, 3, 1, 0, 1, 1},
          Conv{1, 12, 13, 64, 64, 3, 1, 2, 1, 1}, Conv{1, 12, 12, 160, 64, 3, 1, 1, 1, 1},
          Conv{4, 30, 33, 64, 96, 3, 1, 1, 1, 1}}) {
        EXPECT_TRUE(is_filtered(v, target)) << v.height << "x" << v.width << " " << v.in;
        check_conv(v, target);
        if (HasFatalFailure()) return;
    }
    TargetInfo narrow = target;
    narrow.avx512f = false;
    narrow.vector_bits = 256;
    EXPECT_TRUE(is_filtered({2, 13, 11, 40, 64, 3, 1, 1, 1, 1}, narrow));
    check_conv({2, 13, 11, 40, 64, 3, 1, 1, 1, 1}, narrow);
    EXPECT_FALSE(is_filtered({1, 14, 14, 64, 64, 3, 2, 1, 1, 1}, target));
    EXPECT_FALSE(is_filtered({1, 14, 14, 64, 64, 3, 1, 2, 2, 1}, target));
    EXPECT_FALSE(is_filtered({1, 14, 14, 64, 64, 5, 1, 2, 1, 1}, target));
    EXPECT_FALSE(is_filtered({1, 14, 14, 24, 64, 3, 1, 1, 1, 1}, target));
    EXPECT_FALSE(is_filtered({1, 14, 14, 128, 128, 3, 1, 1, 1, 2}, target));
}

/// Sums of what only some of four results read must not show in the others: infinities, no numbers,
/// what overflows when added, and numbers beside which the others' last bits are lost.
TEST(Contraction, MinimalFilteringOfStrangeNumbers) {
    const TargetInfo target = by_vectors();
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Conv v{2, 13, 14, 32, 64, 3, 1, 1, 1, 1};
    ASSERT_TRUE(is_filtered(v, target));
    for (const Data& strange : {Data{inf}, Data{-inf, inf}, Data{nan}, Data{3e38F, -3e38F},
                                Data{1e30F}, Data{-1e9F, 1e9F, -1e9F}, Data{2e4F}, Data{1e-30F}}) {
        SCOPED_TRACE(strange[0]);
        check_conv(v, target, strange);
        if (HasFatalFailure()) return;
    }
}

/// A weight's gradient, channels innermost; the input with its border is memory.
struct WeightGradient {
    std::int64_t images, height, width, channels, results;
    Data x, grad;

    WeightGradient(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t k)
        : images(n),
          height(h),
          width(w),
          channels(c),
          results(k),
          x(random_data(n * (h + 2) * (w + 2) * c, 1)),
          grad(random_data(n * h * w * k, 2)) {}

    void check(int parts, TargetInfo target = jit().target()) const {
        target.cores = 2;  // shares of more would be too small
        SCOPED_TRACE(testing::Message() << images << " of " << height << " x " << width << ", "
                                        << channels << " to " << results);
        Builder f;
        const Loop lm = f.loop("m", results), ly = f.loop("y", 3), lx = f.loop("x", 3 * channels);
        const Loop li = f.loop("i", images), lh = f.loop("h", height), lw = f.loop("w", width);
        f.c.m = {lm};
        f.c.n = {ly, lx};
        f.c.k = {li, lh, lw};
        const auto b_grad = f.buffer(), b_x = f.buffer(), out = f.buffer(true);
        f.c.a_insts = {Builder::load(
            b_grad, ((li.var * height + lh.var) * width + lw.var) * results + lm.var)};
        f.c.b_insts = {Builder::load(
            b_x, ((li.var * (height + 2) + lh.var + ly.var) * (width + 2) + lw.var) * channels +
                     lx.var)};
        f.c.epilogue.insts = {Builder::accumulator()};
        f.store(out, (lm.var * 3 + ly.var) * (3 * channels) + lx.var, 0);
        Data a = grad, b = x, found(static_cast<std::size_t>(results * 9 * channels), 99.0F);
        const Kernel& kernel = f.finish();
        EXPECT_EQ(decide(kernel, target).gradient.has_value(), !vector_target(target).matrix_units);
        run(kernel, {a.data(), b.data(), found.data()}, {}, parts, target);
        compare(found);
    }

  private:
    void compare(const Data& found) const {
        std::size_t at = 0;
        for (std::int64_t k = 0; k < results; ++k)
            for (std::int64_t tap = 0; tap < 9; ++tap)
                for (std::int64_t c = 0; c < channels; ++c, ++at) {
                    double sum = 0;
                    for (std::int64_t p = 0; p < images * height * width; ++p) {
                        const std::int64_t row = p / width, across = p % width + tap % 3;
                        const std::int64_t down =
                            row / height * (height + 2) + row % height + tap / 3;
                        sum += static_cast<double>(grad[p * results + k]) *
                               x[(down * (width + 2) + across) * channels + c];
                    }
                    if (std::isnan(sum))
                        ASSERT_TRUE(std::isnan(found[at])) << at;
                    else if (std::abs(sum) > 3.4e38)
                        ASSERT_EQ(found[at], sum > 0 ? HUGE_VALF : -HUGE_VALF) << at;
                    else
                        ASSERT_NEAR(found[at], sum, 2e-5 * (1 + std::abs(sum))) << at;
                }
    }
};

TEST(Contraction, WeightGradientsByMinimalFiltering) {
    TargetInfo small = jit().target();
    small.l2_bytes = 128 << 10;  // several groups of channels and blocks of tiles
    WeightGradient(1, 7, 8, 32, 64).check(1);
    WeightGradient(2, 5, 7, 64, 32).check(2);
    WeightGradient(3, 8, 6, 32, 48).check(1);
    WeightGradient(2, 13, 150, 32, 32).check(1);  // a row of tiles is more than a block of sums
    WeightGradient(4, 7, 7, 128, 64).check(3, small);
    WeightGradient(2, 20, 21, 64, 96).check(3, small);
    TargetInfo narrow = jit().target();
    narrow.avx512f = narrow.amx_bf16 = false;
    narrow.vector_bits = 256;
    WeightGradient(2, 5, 7, 64, 40).check(2, narrow);
}

// Sums of infinite points, or of finite ones that are too large, are no results.
TEST(Contraction, WeightGradientsOfStrangeNumbers) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float strange : {inf, -inf, std::nanf(""), 3e38F}) {
        WeightGradient of_x(2, 6, 7, 64, 32), of_grad = of_x, of_both = of_x;
        of_x.x[(3 * 9 + 4) * 64 + 37] = strange;
        of_x.check(2);
        of_grad.grad[(7 * 7 + 5) * 32 + 9] = strange;
        of_grad.check(2);
        of_both.x[(1 * 9 + 1) * 64 + 3] = strange;
        of_both.grad[0 * 32 + 30] = 0;
        of_both.check(1);
    }
}

/// Results that go past the caches, in full vectors and in rests, at lines' starts and elsewhere.
TEST(Contraction, ResultsPastTheCaches) {
    TargetInfo target = jit().target();
    target.l3_bytes = 1;
    check_matmul(1, 119, 64, 20, Left::Rows, Right::Packed, false, 2, target);
    check_matmul(1, 119, 40, 20, Left::Rows, Right::Packed, false, 2, target);
    check_matmul(3, 49, 150, 33, Left::Transposed, Right::Packed, false, 2, target);
    check_matmul(2, 65, 256, 33, Left::Padded, Right::Rows, true, 5, target);
    check_conv({1, 14, 14, 32, 64, 3, 1, 1, 1, 1}, target);
    check_conv({2, 9, 10, 17, 33, 3, 2, 1, 1, 1}, target);
    check_conv({1, 7, 9, 64, 64, 3, 1, 1, 1, 8}, target);
    check_conv({8, 7, 7, 64, 64, 3, 1, 1, 1, 1}, target);
}

/// Threads take equal numbers of blocks, so no block may have a tile fewer than it could.
TEST(Contraction, BlocksOfRowsAreEqual) {
    TargetInfo target = target_named("znver4");
    target.l2_bytes = 1 << 20;
    target.cores = 2;
    target.maker = Maker::Amd;
    constexpr std::int64_t m = 1024, n = 768, k = 3072, panel = 32;
    Builder f;
    const Loop lm = f.loop("m", m), ln = f.loop("n", n), lk = f.loop("k", k);
    f.c.m = {lm};
    f.c.n = {ln};
    f.c.k = {lk};
    const auto a = f.buffer(), b = f.buffer(), out = f.buffer(true);
    f.c.b_panel = panel;
    f.c.a_insts = {Builder::load(a, lm.var * k + lk.var)};
    f.c.b_insts = {Builder::load(
        b, floor_div(ln.var, panel) * (k * panel) + lk.var * panel + mod(ln.var, panel))};
    f.c.epilogue.insts = {Builder::accumulator()};
    f.store(out, lm.var * n + ln.var, 0);
    const Decisions d = decide(f.finish(), target);
    EXPECT_EQ(d.heights, std::vector<int>{12});
    EXPECT_EQ(d.tiles, 86);
    const std::int64_t blocks = d.blocks.constant();
    EXPECT_GT(blocks, 1);
    EXPECT_EQ(d.block_rows, (d.tiles + blocks - 1) / blocks * 12);
}

}  // namespace
}  // namespace ingot::codegen
