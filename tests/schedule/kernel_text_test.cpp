// Kernel text: reads back exactly, and is equal for kernels that differ only in names.
#include <gtest/gtest.h>

#include "schedule/nest.h"

namespace ingot {
namespace {

constexpr std::string_view kSoftmax = R"(kernel "softmax" {
  sizes s0 in [1, 4096]
  buffer 0: f32[8*s0] read
  buffer 1: f32[8*s0] written
  buffer 2: f32[s0] scratch read written
  nest {
    loop i0 < 8
    phase {
      loop i1 < s0 vector
      %0: f32 = load 0[i0*s0 + i1]
      reduce max f32 %0
    }
    phase {
      loop i2 < s0 vector
      %0: f32 = load 0[i0*s0 + i2]
      %1: f32 = reduced(0, 0, 0)
      %2: f32 = sub(%0, %1)
      %3: f32 = exp(%2)
      reduce sum f32 %3
      store 2[i2] = %3
    }
    phase {
      loop i3 < s0 vector
      %0: f32 = load 2[i3]
      %1: f32 = reduced(1, 0, 0)
      %2: f32 = div(%0, %1)
      store 1[i0*s0 + i3] = %2
    }
  }
}
)";

constexpr std::string_view kOdd = R"(kernel "odd \"name\"" {
  sizes s0, s1 in [-inf, 8]
  buffer 0: i64[s0] read
  buffer 1: f32[100] read written
  nest no rounding {
    loop i0 < s0 vector
    loop i1 < 4 unroll within [0, 99]
    loop i2 < s0 below s1 within [0, 7]
    phase {
      %0: i64 = load 0[i0]
      %1: i64 = bind x0 %0 extent [100] imm 1
      %2: b8 = constant true
      %3: f32 = load 1[x0] if %2 else nan
      %4: f32 = round_decimals(%3) imm -2
      %5: i64 = index [4*(i0 // 3) + min(10, i0)]
      %6: i64 = bind x1 %5 extent [0] within all
      reduce argmax f32 %4 index %5
      store 1[x0 + x1] = %4 if %2 atomic_add
    }
  }
}
)";

constexpr std::string_view kMatmul = R"(kernel "matmul_relu" {
  buffer 0: f32[128] read
  buffer 1: f32[128] read
  buffer 2: f32[64] written
  contraction f32 panel 16 {
    m i0 < 8
    n i1 < 8 vector
    k i2 < 16
    a {
      %0: f32 = load 0[16*i0 + i2]
    }
    b {
      %0: f32 = load 1[i1 + 8*i2]
    }
    epilogue {
      %0: f32 = accumulator
      %1: f32 = relu(%0)
      store 2[8*i0 + i1] = %1
    }
  }
}
)";

TEST(KernelText, ReadsBack) {
    for (std::string_view text : {kSoftmax, kOdd, kMatmul}) {
        ExprPool pool;
        Kernel k = parse_kernel(text, pool);
        EXPECT_EQ(to_string(k), text);
        // Again into the same pool, whose names are taken, and into one where they mean other
        // things.
        EXPECT_EQ(to_string(parse_kernel(text, pool)), text);
        ExprPool other;
        for (const char* name : {"i0", "i1", "i2", "i3", "s0", "s1", "x0"}) other.index(name, 77);
        EXPECT_EQ(to_string(parse_kernel(text, other)), text);
    }
}

// Adds rows of a matrix; variables made in another order and under other names.
Kernel row_sum(ExprPool& pool, const char* row, const char* column, bool column_first) {
    Expr n = pool.symbol(std::string("n_") + row, {1, 100});
    if (column_first) pool.index(column, n), floor_div(pool.index(column, n), 2);
    Expr i = pool.index(row, 8), j = pool.index(column, n);
    Inst load;
    load.kind = InstKind::Load;
    load.buffer = 0;
    load.offset = i * n + floor_div(j, 2) + mod(i, 3) * Expr(5) + Expr(7);
    Phase phase;
    phase.loops = {{j, n, LoopKind::Vector}};
    phase.insts = {load};
    phase.reductions = {{ReduceOp::Sum, DType::F32, 0, kNone}};
    Kernel k;
    k.name = "sum";
    k.buffers = {{DType::F32, n * Expr(8), BufferScope::Argument, true, false}};
    k.sizes = {n};
    k.nests = {{{{i, 8, LoopKind::Serial}}, {phase}, true}};
    return k;
}

TEST(KernelText, NamesDoNotMatter) {
    ExprPool a, b;
    EXPECT_EQ(to_string(row_sum(a, "i", "j", false)), to_string(row_sum(b, "zz", "aa", true)));
    ExprPool c;
    Kernel other = row_sum(c, "i", "j", false);
    other.nests[0].phases[0].insts[0].offset += 1;
    EXPECT_NE(to_string(row_sum(a, "i", "j", false)), to_string(other));
}

TEST(KernelText, ErrorsNameThePlace) {
    ExprPool pool;
    try {
        parse_kernel("kernel \"k\" {\n  buffer 0: f32[i0]\n}", pool);
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(std::string(e.what()), "kernel, line 2, column 17: 'i0' is not declared");
    }
    for (std::size_t n = 0; n < kSoftmax.size() - 2; ++n) {
        ExprPool fresh;
        EXPECT_THROW(parse_kernel(kSoftmax.substr(0, n), fresh), UserError);
    }
}

}  // namespace
}  // namespace ingot
