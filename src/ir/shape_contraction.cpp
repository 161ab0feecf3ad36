// Shape rules of contractions; see shape_rules.h.
#include "ir/shape_rules.h"

namespace ingot::shape {

namespace {

// Of products that may be asked for another type than their operands'.
DType product_dtype(const Rule& r) {
    return r.attrs.has("dtype") ? r.attr<DType>("dtype") : r.operand(0).dtype;
}

// [b.., m, k] and [b.., k, n] (or [b.., n / panel, k, panel]): checks the batch sizes.
void check_batches(const Rule& r, std::size_t batch_dims) {
    for (std::size_t i = 0; i < batch_dims; ++i)
        r.require_equal(r.sizes(0)[i], r.sizes(1)[i], "batches of different sizes");
}

std::vector<Type> matmul(const Rule& r) {
    r.require_same_dtype(0, 1);
    r.require(r.rank(0) >= 2 && r.rank(0) == r.rank(1), "needs matrices of equal rank");
    auto rank = static_cast<std::size_t>(r.rank(0));
    check_batches(r, rank - 2);
    r.require_equal(r.sizes(0)[rank - 1], r.sizes(1)[rank - 2], "inner sizes differ");
    Sizes sizes = r.sizes(0);
    sizes.back() = r.sizes(1).back();
    return {r.make(product_dtype(r), std::move(sizes))};
}

std::vector<Type> matmul_bias(const Rule& r) {
    r.require_same_dtype(0, 2);
    r.require(r.rank(0) == 2 && r.rank(2) == 1, "needs two matrices and a vector");
    r.require_equal(r.sizes(1)[1], r.sizes(2)[0], "columns and bias differ");
    return matmul(r);
}

std::vector<Type> packed_matmul(const Rule& r) {
    r.require_same_dtype(0, 1);
    r.require(r.rank(0) >= 2 && r.rank(1) == r.rank(0) + 1,
              "needs matrices and panels of one dim more");
    auto rank = static_cast<std::size_t>(r.rank(0));
    check_batches(r, rank - 2);
    r.require_equal(r.sizes(0)[rank - 1], r.sizes(1)[rank - 1], "inner sizes differ");
    Expr n = r.attr<Expr>("n");
    r.require(known_le(n, r.sizes(1)[rank - 2] * r.sizes(1)[rank]) != false,
              "n is larger than the panels");
    Sizes sizes = r.sizes(0);
    sizes.back() = n;
    return r.same(std::move(sizes));
}

// Sizes of a convolution of sizes `in` ([n, c, spatial..]) with a weight of sizes `weight`.
Sizes conv_sizes(const Rule& r, const Sizes& in, const Sizes& weight, bool transposed) {
    r.require(in.size() >= 3 && weight.size() == in.size(), "needs [n, c, spatial..] operands");
    std::size_t spatial = in.size() - 2;
    const Ints &stride = r.ints("stride"), &dilation = r.ints("dilation");
    const Sizes& padding = r.size_list("padding");
    auto groups = r.attr<std::int64_t>("groups");
    r.require(stride.size() == spatial && dilation.size() == spatial && padding.size() == spatial,
              "stride, padding and dilation need one entry a spatial dim");
    r.require(groups > 0, "groups must be positive");
    Sizes sizes{in[0]};
    if (transposed) {
        r.require_equal(in[1], weight[0], "channels differ");
        sizes.push_back(weight[1] * Expr(groups));
    } else {
        r.require_equal(in[1], weight[1] * Expr(groups), "channels differ");
        sizes.push_back(weight[0]);
    }
    for (std::size_t i = 0; i < spatial; ++i) {
        r.require(stride[i] > 0 && dilation[i] > 0, "strides and dilations must be positive");
        Expr reach = Expr(dilation[i]) * (weight[i + 2] - Expr(1));
        if (transposed) {
            const Ints& extra = r.ints("output_padding");
            r.require(extra.size() == spatial, "output_padding needs one entry a spatial dim");
            sizes.push_back((in[i + 2] - Expr(1)) * Expr(stride[i]) - Expr(2) * padding[i] + reach +
                            Expr(extra[i]) + Expr(1));
        } else {
            sizes.push_back(
                floor_div(in[i + 2] + Expr(2) * padding[i] - reach - Expr(1), stride[i]) + Expr(1));
        }
        r.require(known_le(0, sizes.back()) != false, "the kernel is larger than the input");
    }
    return sizes;
}

std::vector<Type> conv_relu(const Rule& r) {
    r.require(r.operands.size() == 3 || r.operands.size() == 4,
              "needs an image, a weight, a bias and maybe a residual");
    for (std::size_t i = 1; i < r.operands.size(); ++i) r.require_same_dtype(0, i);
    Sizes sizes = conv_sizes(r, r.sizes(0), r.sizes(1), false);
    r.require(r.rank(2) == 1, "the bias is a vector");
    r.require_equal(r.sizes(2)[0], sizes[1], "channels and bias differ");
    if (r.operands.size() == 4) {
        r.require(r.sizes(3).size() == sizes.size(), "the residual is of another rank");
        for (std::size_t i = 0; i < sizes.size(); ++i)
            r.require_equal(r.sizes(3)[i], sizes[i], "the residual is of other sizes");
    }
    return r.same(std::move(sizes));
}

std::vector<Type> attention(const Rule& r) {
    r.require(r.operands.size() == 3 || r.operands.size() == 4, "needs q, k, v and maybe a mask");
    for (std::size_t i = 0; i < 3; ++i) {
        r.require(r.rank(i) == 4, "needs [b, h, l, e] operands");
        r.require_same_dtype(0, i);
        r.require_equal(r.sizes(i)[0], r.sizes(0)[0], "batches differ");
    }
    r.require_equal(r.sizes(1)[1], r.sizes(2)[1], "k and v have different heads");
    r.require_equal(r.sizes(1)[2], r.sizes(2)[2], "k and v have different lengths");
    r.require_equal(r.sizes(0)[3], r.sizes(1)[3], "q and k have different widths");
    if (r.operands.size() == 4) {
        r.require(r.rank(3) == 4, "the mask needs four dims");
        r.require(r.operand(3).dtype == DType::Bool || r.operand(3).dtype == r.operand(0).dtype,
                  "the mask is a bool or of q's type");
        const Sizes full{r.sizes(0)[0], r.sizes(0)[1], r.sizes(0)[2], r.sizes(1)[2]};
        for (std::size_t i = 0; i < 4; ++i)
            if (!r.sizes(3)[i].is(1))
                r.require_equal(r.sizes(3)[i], full[i], "the mask does not broadcast");
    }
    Sizes sizes = r.sizes(0);
    sizes[3] = r.sizes(2)[3];
    std::vector<Type> results = r.same(std::move(sizes));
    if (r.attr<bool>("logsumexp"))
        results.push_back(r.make(DType::F32, {r.sizes(0)[0], r.sizes(0)[1], r.sizes(0)[2]}));
    return results;
}

std::vector<Type> cdist(const Rule& r) {
    r.require_same_dtype(0, 1);
    r.require(r.rank(0) >= 2 && r.rank(0) == r.rank(1), "needs matrices of equal rank");
    auto rank = static_cast<std::size_t>(r.rank(0));
    check_batches(r, rank - 2);
    r.require_equal(r.sizes(0)[rank - 1], r.sizes(1)[rank - 1], "rows of different lengths");
    Sizes sizes = r.sizes(0);
    sizes.back() = r.sizes(1)[rank - 2];
    return r.same(std::move(sizes));
}

// (a i8 [m, k], b i8 [k, n] or u8 [k, n / 2], scales [m], scales [n]).
std::vector<Type> quantized_matmul(const Rule& r) {
    r.require(r.rank(0) == 2 && r.rank(1) == 2 && r.rank(2) == 1 && r.rank(3) == 1,
              "needs two matrices and two vectors of scales");
    r.require(r.operand(0).dtype == DType::I8, "operand 0 must be i8");
    r.require(r.operand(1).dtype == DType::I8 || r.operand(1).dtype == DType::U8,
              "operand 1 must be i8, or u8 that holds two int4");
    r.require_equal(r.sizes(0)[1], r.sizes(1)[0], "inner sizes differ");
    r.require_equal(r.sizes(0)[0], r.sizes(2)[0], "rows and row scales differ");
    Expr columns = r.sizes(1)[1] * Expr(r.operand(1).dtype == DType::U8 ? 2 : 1);
    r.require_equal(columns, r.sizes(3)[0], "columns and column scales differ");
    return {r.make(r.attr<DType>("dtype"), {r.sizes(0)[0], r.sizes(3)[0]})};
}

}  // namespace

std::vector<Type> contraction(const Rule& r) {
    switch (r.prim) {
        case Prim::Matmul:
            return matmul(r);
        case Prim::MatmulBias:
            return matmul_bias(r);
        case Prim::PackedMatmul:
            return packed_matmul(r);
        case Prim::Conv:
            r.require_same_dtype(0, 1);
            return r.same(conv_sizes(r, r.sizes(0), r.sizes(1), r.attr<bool>("transposed")));
        case Prim::ConvRelu:
            return conv_relu(r);
        case Prim::PackedConv:
            r.require_same_dtype(0, 1);
            return r.same(conv_sizes(r, r.sizes(0), r.size_list("weight_sizes"), false));
        case Prim::ConvGradInput:
        case Prim::ConvGradWeight:
            r.require_same_dtype(0, 1);
            r.require(r.size_list("sizes").size() == r.sizes(0).size(), "sizes of another rank");
            return r.same(r.size_list("sizes"));
        case Prim::Attention:
            return attention(r);
        case Prim::AttentionGrad:
            r.require(r.operands.size() == 6 || r.operands.size() == 7,
                      "needs grad, q, k, v, out, logsumexp and maybe a mask");
            return {r.operand(1), r.operand(2), r.operand(3)};
        case Prim::Cdist:
            return cdist(r);
        case Prim::QuantizedMatmul:
            return quantized_matmul(r);
        default:
            r.fail("no shape rule");
    }
}

}  // namespace ingot::shape
