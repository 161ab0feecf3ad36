// Shape rules: results of representative prims, symbolic sizes, and what is refused.
#include <gtest/gtest.h>

#include "ir/graph.h"

namespace ingot {
namespace {

Type f32(Sizes sizes) { return {DType::F32, std::move(sizes), {}}; }
Type i64(Sizes sizes) { return {DType::I64, std::move(sizes), {}}; }

std::vector<Type> infer(Prim prim, std::vector<Type> operands, Attrs attrs = {}) {
    return infer_types(prim, operands, attrs);
}
Sizes sizes_of(Prim prim, std::vector<Type> operands, Attrs attrs = {}) {
    return infer(prim, std::move(operands), std::move(attrs))[0].sizes;
}

TEST(Shape, PointwiseNeedsEqualSizesAndTypes) {
    EXPECT_EQ(infer(Prim::Add, {f32({2, 3}), f32({2, 3})})[0], f32({2, 3}));
    EXPECT_THROW(infer(Prim::Add, {f32({2, 3}), f32({2, 4})}), InternalError);
    EXPECT_THROW(infer(Prim::Add, {f32({2}), i64({2})}), InternalError);
    EXPECT_THROW(infer(Prim::Add, {f32({2})}), InternalError);
    EXPECT_THROW(infer(Prim::Sin, {i64({2})}), InternalError);
    EXPECT_EQ(infer(Prim::Lt, {i64({2}), i64({2})})[0].dtype, DType::Bool);
    EXPECT_EQ(infer(Prim::Convert, {f32({2})}, {{"dtype", DType::BF16}})[0].dtype, DType::BF16);
    Type c{DType::C64, {4}, {}};
    EXPECT_EQ(infer(Prim::Abs, {c})[0], f32({4}));
    EXPECT_EQ(infer(Prim::Complex, {f32({4}), f32({4})})[0], c);
}

TEST(Shape, UndecidedSizesPass) {
    ExprPool pool;
    Expr n = pool.symbol("n", {1, 64}), m = pool.symbol("m", {1, 64});
    EXPECT_EQ(sizes_of(Prim::Add, {f32({n}), f32({m})}), Sizes{n});
    EXPECT_THROW(infer(Prim::Add, {f32({n}), f32({n + Expr(1)})}), InternalError);
    EXPECT_EQ(sizes_of(Prim::Reshape, {f32({n, 4})}, {{"sizes", Sizes{n * Expr(4)}}}),
              Sizes{n * Expr(4)});
    EXPECT_EQ(sizes_of(Prim::Concat, {f32({n}), f32({m})}, {{"dim", std::int64_t{0}}}),
              Sizes{n + m});
}

TEST(Shape, Reductions) {
    EXPECT_EQ(sizes_of(Prim::Sum, {f32({2, 3, 4})}, {{"dims", Ints{2, 0}}}), Sizes{3});
    EXPECT_EQ(infer(Prim::Argmax, {f32({2, 3})}, {{"dims", Ints{1}}})[0], i64({2}));
    EXPECT_THROW(infer(Prim::Sum, {f32({2})}, {{"dims", Ints{1}}}), InternalError);
    EXPECT_THROW(infer(Prim::Sum, {f32({2})}, {{"dims", Ints{0, 0}}}), InternalError);
    EXPECT_THROW(infer(Prim::Sum, {f32({2})}), InternalError);
}

TEST(Shape, Movement) {
    EXPECT_EQ(sizes_of(Prim::Permute, {f32({2, 3, 4})}, {{"dims", Ints{2, 0, 1}}}),
              (Sizes{4, 2, 3}));
    EXPECT_EQ(
        sizes_of(Prim::Broadcast, {f32({3, 1})}, {{"sizes", Sizes{5, 3, 7}}, {"dims", Ints{1, 2}}}),
        (Sizes{5, 3, 7}));
    EXPECT_EQ(sizes_of(Prim::Slice, {f32({10})},
                       {{"starts", Sizes{1}}, {"ends", Sizes{9}}, {"steps", Ints{3}}}),
              Sizes{3});
    EXPECT_EQ(
        sizes_of(
            Prim::Window, {f32({1, 9})},
            {{"dims", Ints{1}}, {"sizes", Sizes{3}}, {"steps", Ints{2}}, {"dilations", Ints{2}}}),
        (Sizes{1, 3, 3}));
    EXPECT_EQ(
        sizes_of(
            Prim::Diagonal, {f32({4, 6, 5})},
            {{"dim1", std::int64_t{0}}, {"dim2", std::int64_t{2}}, {"offset", std::int64_t{2}}}),
        (Sizes{6, 3}));
    EXPECT_THROW(infer(Prim::Reshape, {f32({6})}, {{"sizes", Sizes{4}}}), InternalError);
}

TEST(Shape, Take) {
    EXPECT_EQ(sizes_of(Prim::Take, {f32({10, 4}), i64({2, 3})}, {{"dims", Ints{0}}}),
              (Sizes{2, 3, 4}));
    EXPECT_EQ(sizes_of(Prim::Take, {f32({5, 6, 7, 8}), i64({2}), i64({2})}, {{"dims", Ints{1, 3}}}),
              (Sizes{5, 2, 7}));
}

TEST(Shape, Contractions) {
    EXPECT_EQ(sizes_of(Prim::Matmul, {f32({2, 3, 4}), f32({2, 4, 5})}), (Sizes{2, 3, 5}));
    EXPECT_THROW(infer(Prim::Matmul, {f32({3, 4}), f32({5, 6})}), InternalError);
    EXPECT_EQ(sizes_of(Prim::PackedMatmul, {f32({3, 4}), f32({2, 4, 16})},
                       {{"n", Expr(20)}, {"layout", std::string("panel16")}}),
              (Sizes{3, 20}));
    Attrs conv{{"stride", Ints{2, 2}},   {"padding", Sizes{1, 1}},
               {"dilation", Ints{1, 1}}, {"groups", std::int64_t{2}},
               {"transposed", false},    {"output_padding", Ints{0, 0}}};
    EXPECT_EQ(sizes_of(Prim::Conv, {f32({1, 8, 15, 16}), f32({6, 4, 3, 3})}, conv),
              (Sizes{1, 6, 8, 8}));
    conv.set("transposed", true);
    EXPECT_EQ(sizes_of(Prim::Conv, {f32({1, 8, 8, 8}), f32({8, 3, 3, 3})}, conv),
              (Sizes{1, 6, 15, 15}));
}

TEST(Shape, CallerTypedPrimsThrow) {
    EXPECT_THROW(infer(Prim::ExternCall, {f32({1})}), InternalError);
}

}  // namespace
}  // namespace ingot
