// The interpreter of loop nests, against results worked out by hand.
#include "schedule/interpret.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ingot {
namespace {

Kernel parse(std::string_view text) {
    static ExprPool pool;
    return parse_kernel(text, pool);
}

TEST(Interpret, Softmax) {
    Kernel k = parse(R"(kernel "softmax" {
      sizes s0
      buffer 0: f32[2*s0] read
      buffer 1: f32[2*s0] written
      buffer 2: f32[s0] scratch read written
      nest {
        loop i0 < 2
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
    })");
    float in[] = {0, 1, 2, 5, 5, 5}, out[6], backwards[6];
    void* buffers[] = {in, out};
    const std::int64_t sizes[] = {3};
    EXPECT_TRUE(evaluate(k, buffers, sizes));
    float total = 1 + std::exp(-1.f) + std::exp(-2.f);
    for (int i = 0; i < 3; ++i) {
        EXPECT_NEAR(out[i], std::exp(static_cast<float>(i - 2)) / total, 1e-6);
        EXPECT_NEAR(out[3 + i], 1.0 / 3, 1e-6);
    }
    buffers[1] = backwards;
    evaluate(k, buffers, sizes, PointOrder::Backwards);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(out[i], backwards[i]);
}

TEST(Interpret, ArgmaxTakesTheFirstAndNanIsLargest) {
    Kernel k = parse(R"(kernel "argmax" {
      buffer 0: f32[8] read
      buffer 1: i64[2] written
      nest {
        loop i0 < 2
        phase {
          loop i1 < 4
          %0: f32 = load 0[4*i0 + i1]
          %1: i64 = index [i1]
          reduce argmax f32 %0 index %1
        }
        phase {
          %0: i64 = reduced(0, 0, 1)
          store 1[i0] = %0
        }
      }
    })");
    float in[] = {1, 7, 7, 2, 1, std::numeric_limits<float>::quiet_NaN(), 9, 2};
    std::int64_t out[2];
    void* buffers[] = {in, out};
    EXPECT_TRUE(evaluate(k, buffers, {}));
    EXPECT_EQ(out[0], 1);
    EXPECT_EQ(out[1], 1);
}

constexpr std::string_view kTake = R"(kernel "take" {
  buffer 0: i64[4] read
  buffer 1: f32[3] read
  buffer 2: f32[4] written
  nest {
    loop i0 < 4
    phase {
      %0: i64 = load 0[i0]
      %1: i64 = bind x0 %0 extent [3] imm 1
      %2: f32 = load 1[x0]
      store 2[i0] = %2
    }
  }
})";

TEST(Interpret, CheckedIndices) {
    Kernel k = parse(kTake);
    std::int64_t index[] = {2, -1, 0, -3};
    float from[] = {10, 20, 30}, out[4];
    void* buffers[] = {index, from, out};
    EXPECT_TRUE(evaluate(k, buffers, {}));
    EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{30, 30, 10, 10}));
    index[1] = 3;
    EXPECT_FALSE(evaluate(k, buffers, {}));
    EXPECT_EQ(out[1], 10);
}

TEST(Interpret, AccessOutsideABufferThrows) {
    Kernel k = parse(kTake);
    k.buffers[2].elements = 3;
    std::int64_t index[] = {0, 0, 0, 0};
    float from[] = {10, 20, 30}, out[4];
    void* buffers[] = {index, from, out};
    EXPECT_THROW(evaluate(k, buffers, {}), InternalError);
}

TEST(Interpret, PackedAndPlainContractionsAgree) {
    auto text = [](const char* panel, const char* b_size) {
        return std::string(R"(kernel "matmul" {
          buffer 0: f32[6] read
          buffer 1: f32[)") +
               b_size + R"(] read
          buffer 2: f32[10] written
          contraction f32 panel )" +
               panel + R"( {
            m i0 < 2
            n i1 < 5
            k i2 < 3
            a {
              %0: f32 = load 0[3*i0 + i2]
            }
            b {
              %0: f32 = load 1[5*i2 + i1]
            }
            epilogue {
              %0: f32 = accumulator
              %1: f32 = relu(%0)
              store 2[5*i0 + i1] = %1
            }
          }
        })";
    };
    float a[6], b[15], packed[24] = {}, plain_out[10], packed_out[10];
    for (int i = 0; i < 6; ++i) a[i] = static_cast<float>(i - 2);
    for (int k = 0; k < 3; ++k)
        for (int n = 0; n < 5; ++n) {
            b[5 * k + n] = static_cast<float>(k * n - 3);
            packed[(n / 4 * 3 + k) * 4 + n % 4] = b[5 * k + n];
        }
    void* plain[] = {a, b, plain_out};
    void* panels[] = {a, packed, packed_out};
    evaluate(parse(text("0", "15")), plain, {});
    evaluate(parse(text("4", "24")), panels, {});
    for (int m = 0; m < 2; ++m)
        for (int n = 0; n < 5; ++n) {
            float sum = 0;
            for (int k = 0; k < 3; ++k) sum += a[3 * m + k] * b[5 * k + n];
            EXPECT_EQ(plain_out[5 * m + n], std::max(sum, 0.f));
            EXPECT_EQ(packed_out[5 * m + n], std::max(sum, 0.f));
        }
}

}  // namespace
}  // namespace ingot
