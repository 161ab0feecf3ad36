// Contractions in the reference evaluator: the defining sums, accumulated in double.
#include <cmath>

#include "ir/reference_call.h"

namespace ingot::reference {

namespace {

// out[b, m, n] = sum over k of x[b, m, k] * right(b, k, n).
template <class Right>
void multiply(const Call& c, std::int64_t n, const Right& right) {
    const Tensor& x = c.x[0];
    const std::size_t rank = x.sizes.size();
    const std::int64_t m = x.sizes[rank - 2], k = x.sizes[rank - 1];
    const std::int64_t batches = count_of(std::span(x.sizes).first(rank - 2));
    for (std::int64_t b = 0; b < batches; ++b)
        for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
                Total sum;
                for (std::int64_t l = 0; l < k; ++l)
                    sum.add_product(x.get((b * m + i) * k + l), right(b, l, j), x.dtype);
                c.out[0].set((b * m + i) * n + j, sum.rounded(c.out[0].dtype));
            }
}

void matmul(const Call& c) {
    const Tensor& w = c.x[1];
    const std::size_t rank = w.sizes.size();
    const std::int64_t k = w.sizes[rank - 2], n = w.sizes[rank - 1];
    multiply(c, n, [&](std::int64_t b, std::int64_t l, std::int64_t j) {
        return w.get((b * k + l) * n + j);
    });
}

void matmul_bias(const Call& c) {
    const bool relu = c.attrs.get<std::string>("activation") == "relu";
    const std::int64_t m = c.x[0].sizes[0], k = c.x[0].sizes[1], n = c.x[1].sizes[1];
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
            double sum = c.x[2].get(j).re;
            for (std::int64_t l = 0; l < k; ++l)
                sum += c.x[0].get(i * k + l).re * c.x[1].get(l * n + j).re;
            if (relu && sum < 0) sum = 0;
            c.out[0].set(i * n + j, round_num({sum, 0, 0}, c.out[0].dtype));
        }
}

void packed_matmul(const Call& c) {
    const Tensor& w = c.x[1];
    const std::size_t rank = w.sizes.size();
    const std::int64_t panels = w.sizes[rank - 3], k = w.sizes[rank - 2], p = w.sizes[rank - 1];
    multiply(c, c.out[0].sizes.back(), [&](std::int64_t b, std::int64_t l, std::int64_t j) {
        return w.get(((b * panels + j / p) * k + l) * p + j % p);
    });
}

void quantized_matmul(const Call& c) {
    const Tensor &a = c.x[0], &b = c.x[1];
    const std::int64_t m = a.sizes[0], k = a.sizes[1], n = c.out[0].sizes[1];
    auto right = [&](std::int64_t l, std::int64_t j) {
        if (b.dtype == DType::I8) return b.get(l * n + j).i;
        std::int64_t nibble = (b.get((l * n + j) / 2).i >> (j % 2 * 4)) & 15;
        return nibble < 8 ? nibble : nibble - 16;
    };
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
            std::int64_t sum = 0;
            for (std::int64_t l = 0; l < k; ++l) sum += a.get(i * k + l).i * right(l, j);
            double scaled = static_cast<double>(sum) * c.x[2].get(i).re * c.x[3].get(j).re;
            c.out[0].set(i * n + j, round_num({scaled, 0, 0}, c.out[0].dtype));
        }
}

// A convolution relates three tensors: the big side [n, groups * b, big..], the small side
// [n, s, small..] and the weight [s, b, kernel..], where big = small * stride - padding +
// kernel * dilation. Plain convolutions go from the big side to the small one, transposed ones
// back; gradients are the same relation solved for another of the three.
struct ConvSides {
    Ints big, small, weight;
};
template <class Visit>
void for_each_conv_term(const Call& c, const ConvSides& s, const Visit& visit) {
    const Ints big_strides = dense_strides(s.big), small_strides = dense_strides(s.small);
    const Ints weight_strides = dense_strides(s.weight);
    const Ints &stride = c.ints("stride"), &dilation = c.ints("dilation");
    const Ints padding = c.sizes("padding");
    const std::int64_t groups = c.integer("groups");
    const std::int64_t small_channels = s.weight[0] / groups, big_channels = s.weight[1];
    for_each_index(s.small, [&](const Ints& small) {
        std::int64_t group = small[1] / small_channels;
        Ints kernel_box(s.weight.begin() + 1, s.weight.end());
        for_each_index(kernel_box, [&](const Ints& k) {
            std::int64_t big =
                small[0] * big_strides[0] + (group * big_channels + k[0]) * big_strides[1];
            std::int64_t weight = small[1] * weight_strides[0] + k[0] * weight_strides[1];
            for (std::size_t d = 0; d < stride.size(); ++d) {
                std::int64_t at = small[d + 2] * stride[d] - padding[d] + k[d + 1] * dilation[d];
                if (at < 0 || at >= s.big[d + 2]) return;
                big += at * big_strides[d + 2];
                weight += k[d + 1] * weight_strides[d + 2];
            }
            visit(big, dot(small, small_strides), weight);
        });
    });
}

// The weight [o, c, kernel..] a packed one stands for.
Tensor unpacked_weight(const Call& c) {
    const Tensor& packed = c.x[1];
    Tensor w(packed.dtype, c.sizes("weight_sizes"));
    const std::int64_t p = packed.sizes[2], rows = packed.sizes[1], channels = w.sizes[1];
    std::int64_t at = 0;
    for_each_index(w.sizes, [&](const Ints& index) {
        std::int64_t row = 0;
        for (std::size_t d = 2; d < index.size(); ++d) row = row * w.sizes[d] + index[d];
        row = row * channels + index[1];
        w.set(at++, packed.get((index[0] / p * rows + row) * p + index[0] % p));
    });
    return w;
}

void convolution(const Call& c) {
    const bool transposed =
        c.prim != Prim::PackedConv && c.prim != Prim::ConvRelu && c.attr<bool>("transposed");
    Tensor& out = c.out[0];
    std::vector<Total> sums(static_cast<std::size_t>(out.numel()));
    auto store = [&] {
        for (std::size_t i = 0; i < sums.size(); ++i)
            out.set(static_cast<std::int64_t>(i), sums[i].rounded(out.dtype));
    };
    const DType t = out.dtype;
    auto add = [&](std::int64_t to, Num a, Num b) {
        sums[static_cast<std::size_t>(to)].add_product(a, b, t);
    };
    const Tensor &a = c.x[0], &b = c.x[1];
    if (c.prim == Prim::ConvGradWeight) {  // (grad, input)
        ConvSides s{transposed ? a.sizes : b.sizes, transposed ? b.sizes : a.sizes, out.sizes};
        for_each_conv_term(c, s, [&](std::int64_t big, std::int64_t small, std::int64_t weight) {
            add(weight, a.get(transposed ? big : small), b.get(transposed ? small : big));
        });
        return store();
    }
    const Tensor w = c.prim == Prim::PackedConv ? unpacked_weight(c) : b;
    // A plain convolution and the gradient of a transposed one end on the small side.
    const bool to_small = transposed == (c.prim == Prim::ConvGradInput);
    ConvSides s{to_small ? a.sizes : out.sizes, to_small ? out.sizes : a.sizes, w.sizes};
    for_each_conv_term(c, s, [&](std::int64_t big, std::int64_t small, std::int64_t weight) {
        add(to_small ? small : big, a.get(to_small ? big : small), w.get(weight));
    });
    store();
}

// The sums with what follows them, rounded once.
void convolution_relu(const Call& c) {
    Tensor& out = c.out[0];
    std::vector<double> sums(static_cast<std::size_t>(out.numel()));
    const std::int64_t channels = out.sizes[1];
    const std::int64_t points = out.numel() / std::max<std::int64_t>(out.sizes[0] * channels, 1);
    for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] = c.x[2].get(static_cast<std::int64_t>(i) / points % channels).re;
    const ConvSides s{c.x[0].sizes, out.sizes, c.x[1].sizes};
    for_each_conv_term(c, s, [&](std::int64_t big, std::int64_t small, std::int64_t weight) {
        sums[static_cast<std::size_t>(small)] += c.x[0].get(big).re * c.x[1].get(weight).re;
    });
    for (std::size_t i = 0; i < sums.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        if (c.x.size() == 4) sums[i] += c.x[3].get(at).re;
        if (sums[i] < 0) sums[i] = 0;
        out.set(at, round_num({sums[i], 0, 0}, out.dtype));
    }
}

// Offsets and sizes of one attention problem.
struct Heads {
    std::int64_t batch, heads, kv_heads, rows, columns, width, value_width;
    std::int64_t kv_head(std::int64_t h) const { return h / (heads / kv_heads); }
    std::int64_t q(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t e) const {
        return ((b * heads + h) * rows + i) * width + e;
    }
    std::int64_t k(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t e) const {
        return ((b * kv_heads + kv_head(h)) * columns + j) * width + e;
    }
    std::int64_t v(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t e) const {
        return ((b * kv_heads + kv_head(h)) * columns + j) * value_width + e;
    }
    std::int64_t out(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t e) const {
        return ((b * heads + h) * rows + i) * value_width + e;
    }
};
Heads heads_of(const Tensor& q, const Tensor& k, const Tensor& v) {
    return {q.sizes[0], q.sizes[1], k.sizes[1], q.sizes[2], k.sizes[2], q.sizes[3], v.sizes[3]};
}

// The scores of row i before the softmax; masked columns are -inf.
std::vector<double> scores(const Call& c, const Heads& s, const Tensor& q, const Tensor& k,
                           const Tensor* mask, std::int64_t b, std::int64_t h, std::int64_t i) {
    const double scale = c.attr<double>("scale");
    std::vector<double> row(static_cast<std::size_t>(s.columns));
    Ints mask_strides;
    if (mask) {
        mask_strides = dense_strides(mask->sizes);
        for (std::size_t d = 0; d < 4; ++d)
            if (mask->sizes[d] == 1) mask_strides[d] = 0;
    }
    for (std::int64_t j = 0; j < s.columns; ++j) {
        double sum = 0;
        for (std::int64_t e = 0; e < s.width; ++e)
            sum += q.get(s.q(b, h, i, e)).re * k.get(s.k(b, h, j, e)).re;
        sum *= scale;
        if (mask) {
            Num m = mask->get(dot({b, h, i, j}, mask_strides));
            if (mask->dtype == DType::Bool)
                sum = m.i ? sum : -HUGE_VAL;
            else
                sum += m.re;
        }
        if (c.attr<bool>("causal") && j > i) sum = -HUGE_VAL;
        row[static_cast<std::size_t>(j)] = sum;
    }
    return row;
}

double log_sum_exp(const std::vector<double>& row) {
    double top = -HUGE_VAL, sum = 0;
    for (double v : row) top = std::isnan(v) || v > top ? v : top;
    if (top == -HUGE_VAL) return top;
    for (double v : row) sum += std::exp(v - top);
    return top + std::log(sum);
}

template <class Body>
void for_each_row(const Heads& s, const Body& body) {
    for (std::int64_t b = 0; b < s.batch; ++b)
        for (std::int64_t h = 0; h < s.heads; ++h)
            for (std::int64_t i = 0; i < s.rows; ++i) body(b, h, i);
}

// A row with every column masked gives 0, as PyTorch's safe softmax does.
void attention(const Call& c) {
    const Heads s = heads_of(c.x[0], c.x[1], c.x[2]);
    const Tensor* mask = c.x.size() > 3 ? &c.x[3] : nullptr;
    for_each_row(s, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
        std::vector<double> row = scores(c, s, c.x[0], c.x[1], mask, b, h, i);
        double lse = log_sum_exp(row);
        for (std::int64_t e = 0; e < s.value_width; ++e) {
            double sum = 0;
            for (std::int64_t j = 0; j < s.columns && lse != -HUGE_VAL; ++j)
                sum += std::exp(row[static_cast<std::size_t>(j)] - lse) *
                       c.x[2].get(s.v(b, h, j, e)).re;
            c.out[0].set(s.out(b, h, i, e), round_num({sum, 0, 0}, c.out[0].dtype));
        }
        if (c.out.size() > 1) c.out[1].set((b * s.heads + h) * s.rows + i, {lse, 0, 0});
    });
}

void attention_grad(const Call& c) {
    const Tensor &grad = c.x[0], &q = c.x[1], &k = c.x[2], &v = c.x[3], &out = c.x[4];
    const Heads s = heads_of(q, k, v);
    const Tensor* mask = c.x.size() > 6 ? &c.x[6] : nullptr;
    const double scale = c.attr<double>("scale");
    std::vector<double> sums[3];
    for (int i = 0; i < 3; ++i) sums[i].resize(static_cast<std::size_t>(c.out[i].numel()));
    for_each_row(s, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
        std::vector<double> row = scores(c, s, q, k, mask, b, h, i);
        double lse = c.x[5].get((b * s.heads + h) * s.rows + i).re, own = 0;
        if (lse == -HUGE_VAL) return;
        for (std::int64_t e = 0; e < s.value_width; ++e)
            own += grad.get(s.out(b, h, i, e)).re * out.get(s.out(b, h, i, e)).re;
        for (std::int64_t j = 0; j < s.columns; ++j) {
            double p = std::exp(row[static_cast<std::size_t>(j)] - lse), dp = 0;
            for (std::int64_t e = 0; e < s.value_width; ++e) {
                double g = grad.get(s.out(b, h, i, e)).re;
                dp += g * v.get(s.v(b, h, j, e)).re;
                sums[2][static_cast<std::size_t>(s.v(b, h, j, e))] += p * g;
            }
            double ds = p * (dp - own) * scale;
            for (std::int64_t e = 0; e < s.width; ++e) {
                sums[0][static_cast<std::size_t>(s.q(b, h, i, e))] +=
                    ds * k.get(s.k(b, h, j, e)).re;
                sums[1][static_cast<std::size_t>(s.k(b, h, j, e))] +=
                    ds * q.get(s.q(b, h, i, e)).re;
            }
        }
    });
    for (int t = 0; t < 3; ++t)
        for (std::size_t i = 0; i < sums[t].size(); ++i)
            c.out[t].set(static_cast<std::int64_t>(i),
                         round_num({sums[t][i], 0, 0}, c.out[t].dtype));
}

void cdist(const Call& c) {
    const Tensor &a = c.x[0], &b = c.x[1];
    const std::size_t rank = a.sizes.size();
    const std::int64_t m = a.sizes[rank - 2], n = b.sizes[rank - 2], width = a.sizes[rank - 1];
    const double p = c.attr<double>("p");
    for (std::int64_t at = 0; at < c.out[0].numel(); ++at) {
        std::int64_t batch = at / (m * n), i = at / n % m, j = at % n;
        double sum = 0;
        for (std::int64_t e = 0; e < width; ++e) {
            double d = std::fabs(a.get((batch * m + i) * width + e).re -
                                 b.get((batch * n + j) * width + e).re);
            if (p == 0)
                sum += d != 0;
            else if (std::isinf(p))
                sum = std::isnan(d) || d > sum ? d : sum;
            else
                sum += std::pow(d, p);
        }
        double v = p == 0 || std::isinf(p) ? sum : std::pow(sum, 1 / p);
        c.out[0].set(at, round_num({v, 0, 0}, c.out[0].dtype));
    }
}

}  // namespace

void contraction(const Call& c) {
    switch (c.prim) {
        case Prim::Matmul:
            return matmul(c);
        case Prim::MatmulBias:
            return matmul_bias(c);
        case Prim::PackedMatmul:
            return packed_matmul(c);
        case Prim::QuantizedMatmul:
            return quantized_matmul(c);
        case Prim::ConvRelu:
            return convolution_relu(c);
        case Prim::Attention:
            return attention(c);
        case Prim::AttentionGrad:
            return attention_grad(c);
        case Prim::Cdist:
            return cdist(c);
        default:
            return convolution(c);
    }
}

}  // namespace ingot::reference
