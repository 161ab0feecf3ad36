// Prims through ATen: contractions, indexing, sorting, scans, linear algebra. See vendor.h.
#include "trace/vendor.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <charconv>

#include "trace/cpu_draws.h"
#include "trace/dtypes.h"
#include "trace/gpu_random.h"

namespace ingot::trace {
namespace {

using Tensors = std::vector<at::Tensor>;
using In = std::span<const at::Tensor>;
using Out = std::span<const at::Tensor>;

Ints sizes_attr(const Attrs& a, std::string_view key) { return to_ints(a.get<Sizes>(key)); }
std::int64_t size_attr(const Attrs& a, std::string_view key) {
    const Expr e = a.get<Expr>(key);
    if (!e.is_constant())
        throw NotSupported("a vendor call with the symbolic size " + to_string(e));
    return e.constant();
}
at::TensorOptions options_attr(const Attrs& a) {
    return at::TensorOptions().dtype(to_scalar_type(a.get<DType>("dtype")));
}
/// A function of its inputs whose results ATen allocates.
template <class F>
VendorFunction plain(F f) {
    return [f](In in, Out) -> Tensors { return {f(in)}; };
}
template <class F>
VendorFunction pair(F f) {
    return [f](In in, Out) -> Tensors {
        auto [first, second] = f(in);
        return {std::move(first), std::move(second)};
    };
}

Tensors matmul(In in, Out out) {
    const at::Tensor &a = in[0], &b = in[1];
    if (!out[0].defined()) return {at::matmul(a, b)};
    at::Tensor result = out[0];
    if (a.dim() == 2) return {at::mm_out(result, a, b)};
    if (a.dim() == 3) return {at::bmm_out(result, a, b)};
    return {at::matmul_out(result, a, b)};
}

/// A product of matrices of 16 bits whose sums are handed over in fp32.
Tensors wide_matmul(In in, Out out) {
    if (!out[0].defined()) return {at::mm(in[0], in[1], at::kFloat)};
    at::Tensor result = out[0];
    return {at::mm_out(result, in[0], in[1], at::kFloat)};
}

Tensors matmul_bias(In in, Out out, bool relu) {
    const at::Tensor &a = in[0], &b = in[1], &bias = in[2];
    at::Tensor result = out[0].defined() ? out[0] : at::empty({a.size(0), b.size(1)}, a.options());
    if (relu) return {at::_addmm_activation_out(result, bias, a, b, 1, 1, false)};
    return {at::addmm_out(result, bias, a, b)};
}

struct ConvArguments {
    Ints stride, padding, dilation, output_padding;
    bool transposed;
    std::int64_t groups;
    explicit ConvArguments(const Attrs& a)
        : stride(a.get<Ints>("stride")),
          padding(sizes_attr(a, "padding")),
          dilation(a.get<Ints>("dilation")),
          output_padding(a.has("output_padding") ? a.get<Ints>("output_padding")
                                                 : Ints(stride.size(), 0)),
          transposed(a.has("transposed") && a.get<bool>("transposed")),
          groups(a.get<std::int64_t>("groups")) {}
    /// The image's points as rows of channels, where they lie so.
    static std::optional<at::Tensor> rows(const at::Tensor& image) {
        if (!image.is_contiguous(at::MemoryFormat::ChannelsLast)) return std::nullopt;
        return image.permute({0, 2, 3, 1}).view({-1, image.size(1)});
    }
    static bool all(const Ints& list, std::int64_t v) {
        return std::ranges::all_of(list, [&](std::int64_t e) { return e == v; });
    }
    /// Whether a kernel of `sizes` meets each point of the image at most once.
    bool single_tap(c10::IntArrayRef sizes) const {
        return sizes.size() == 4 && sizes[2] == 1 && sizes[3] == 1 && groups == 1 && !transposed &&
               all(padding, 0);
    }
    /// The operation as a product that writes into `out`; false where it is none, or has no `out`.
    bool product(Prim prim, In in, const at::Tensor& out) const {
        const bool of_weight = prim == Prim::ConvGradWeight;
        if (!out.defined() || !single_tap(of_weight ? out.sizes() : in[1].sizes())) return false;
        if (!all(stride, 1)) return prim == Prim::ConvGradInput && product_of_some(in, out);
        const auto first = rows(in[0]), second = rows(of_weight ? in[1] : out);
        if (!first || !second) return false;
        if (of_weight) {
            if (!out.is_contiguous() && !out.is_contiguous(at::MemoryFormat::ChannelsLast))
                return false;
            at::Tensor weight = out.as_strided({out.size(0), out.size(1)}, {out.size(1), 1});
            at::mm_out(weight, first->t(), *second);
            return true;
        }
        const at::Tensor weight = in[1].reshape({in[1].size(0), in[1].size(1)});
        at::Tensor result = *second;
        at::mm_out(result, *first, prim == Prim::Conv ? weight.t() : weight);
        return true;
    }
    /// The gradient of an image of which only some points were read: the product in their places,
    /// zeros between. The library's own code for steps reaches half of its products' speed.
    bool product_of_some(In in, at::Tensor out) const {
        const auto gradient = rows(in[0]);
        if (!gradient || !out.is_contiguous(at::MemoryFormat::ChannelsLast)) return false;
        const Ints sizes{in[0].size(0), in[0].size(2), in[0].size(3), out.size(1)};
        at::Tensor read = out.slice(2, 0, c10::nullopt, stride[0]);
        read = read.slice(3, 0, c10::nullopt, stride[1]);
        const at::Tensor weight = in[1].reshape({in[1].size(0), in[1].size(1)});
        out.zero_();
        read.copy_(at::mm(*gradient, weight).view(sizes).permute({0, 3, 1, 2}));
        return true;
    }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& w) const {
        return at::convolution(x, w, {}, stride, padding, dilation, transposed, output_padding,
                               groups);
    }
    /// With what follows in the library's kernel, where there is one: see fuse_convolution.cpp.
    at::Tensor forward_relu(In in) const {
        const bool more = in.size() == 4;
        if (in[0].is_cuda() && at::globalContext().userEnabledCuDNN() && !transposed) {
            if (more)
                return at::cudnn_convolution_add_relu(in[0], in[1], in[3], 1.0, in[2], stride,
                                                      padding, dilation, groups);
            return at::cudnn_convolution_relu(in[0], in[1], in[2], stride, padding, dilation,
                                              groups);
        }
        const at::Tensor sum = at::convolution(in[0], in[1], in[2], stride, padding, dilation,
                                               transposed, output_padding, groups);
        return more ? at::relu(sum + in[3]) : at::relu(sum);
    }
    /// Stands for the operand that the backward does not read: only its sizes, and whether it is
    /// channels last, matter.
    static at::Tensor stand_in(const Ints& sizes, const at::Tensor& grad) {
        const auto format = grad.suggest_memory_format();
        if (format != at::MemoryFormat::Contiguous) return at::empty(sizes, grad.options(), format);
        return at::empty({1}, grad.options()).expand(sizes);
    }
    at::Tensor backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& w,
                        bool for_input) const {
        auto [input, weight, bias] = at::convolution_backward(
            grad, x, w, c10::nullopt, stride, padding, dilation, transposed, output_padding, groups,
            {for_input, !for_input, false});
        return for_input ? input : weight;
    }
};

/// ATen's flash kernels want the mask as numbers that are added to the scores.
std::optional<at::Tensor> additive_mask(In in, std::size_t position) {
    if (in.size() <= position) return std::nullopt;
    const at::Tensor& mask = in[position];
    if (mask.scalar_type() != at::kBool) return mask;
    return at::zeros_like(mask, in[0].scalar_type())
        .masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

/// On GPUs: the flash kernel called directly where it serves, else whatever SDPA chooses.
VendorFunction gpu_attention(double scale, bool causal, bool logsumexp) {
    if (logsumexp) throw NotSupported("attention's logsumexp on a GPU");
    return [=](In in, Out) -> Tensors {
        const at::Tensor &q = in[0], &k = in[1], &v = in[2];
        const bool shared_heads = q.size(1) != k.size(1);
        const auto type = q.scalar_type();
        const bool rows = q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1;
        if (in.size() == 3 && rows && (type == at::kBFloat16 || type == at::kHalf) &&
            q.size(3) % 8 == 0 && q.size(3) <= 256)
            return {std::get<0>(
                at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale))};
        std::optional<at::Tensor> mask;
        if (in.size() > 3) mask = in[3];
        if (mask && causal) {
            const at::Tensor below =
                at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).tril();
            mask = mask->scalar_type() == at::kBool
                       ? mask->logical_and(below)
                       : mask->masked_fill(below.logical_not(),
                                           -std::numeric_limits<double>::infinity());
        }
        return {at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal && !mask, scale,
                                                 shared_heads)};
    };
}

VendorFunction attention(const Attrs& a, c10::Device device) {
    const double scale = a.get<double>("scale");
    const bool causal = a.get<bool>("causal");
    if (device.is_cuda()) return gpu_attention(scale, causal, a.get<bool>("logsumexp"));
    if (a.get<bool>("logsumexp"))
        return [=](In in, Out) -> Tensors {
            auto [out, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
                in[0], in[1], in[2], 0.0, causal, additive_mask(in, 3), scale);
            return {out, sum};
        };
    return [=](In in, Out) -> Tensors {
        const bool shared_heads = in[0].size(1) != in[1].size(1);
        std::optional<at::Tensor> mask;
        if (in.size() > 3) mask = in[3];
        if (mask && causal) {
            // ATen takes one or the other.
            const auto l = in[0].size(2), s = in[1].size(2);
            const at::Tensor below = at::ones({l, s}, at::kBool).tril();
            mask = mask->scalar_type() == at::kBool
                       ? mask->logical_and(below)
                       : mask->masked_fill(below.logical_not(),
                                           -std::numeric_limits<double>::infinity());
        }
        return {at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, causal && !mask,
                                                 scale, shared_heads)};
    };
}

VendorFunction contraction(Prim prim, const Attrs& a, c10::Device device) {
    switch (prim) {
        case Prim::Matmul:
            return a.has("dtype") ? wide_matmul : matmul;
        case Prim::MatmulBias:
            return [relu = a.get<std::string>("activation") == "relu"](In in, Out out) {
                return matmul_bias(in, out, relu);
            };
        case Prim::Conv:
            return [c = ConvArguments(a)](In in, Out out) -> Tensors {
                if (c.product(Prim::Conv, in, out[0])) return {out[0]};
                return {c.forward(in[0], in[1])};
            };
        case Prim::ConvRelu:
            return plain([c = ConvArguments(a)](In in) { return c.forward_relu(in); });
        case Prim::ConvGradInput:
            return [c = ConvArguments(a), s = sizes_attr(a, "sizes")](In in, Out out) -> Tensors {
                if (c.product(Prim::ConvGradInput, in, out[0])) return {out[0]};
                return {c.backward(in[0], ConvArguments::stand_in(s, in[0]), in[1], true)};
            };
        case Prim::ConvGradWeight:
            return [c = ConvArguments(a), s = sizes_attr(a, "sizes")](In in, Out out) -> Tensors {
                if (c.product(Prim::ConvGradWeight, in, out[0])) return {out[0]};
                return {c.backward(in[0], in[1], ConvArguments::stand_in(s, in[0]), false)};
            };
        case Prim::Attention:
            return attention(a, device);
        case Prim::AttentionGrad:
            return [scale = a.get<double>("scale"), causal = a.get<bool>("causal")](
                       In in, Out) -> Tensors {
                auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
                    in[0], in[1], in[2], in[3], in[4], in[5], 0.0, causal, additive_mask(in, 6),
                    scale);
                return {q, k, v};
            };
        case Prim::Cdist:
            return plain([p = a.get<double>("p")](In in) { return at::cdist(in[0], in[1], p); });
        default:
            return nullptr;
    }
}

/// Operands first.. as the index list of `dims`; the other dims are taken whole.
c10::List<std::optional<at::Tensor>> index_list(In in, std::size_t first, const Ints& dims) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::size_t i = 0; i < dims.size(); ++i) {
        while (static_cast<std::int64_t>(list.size()) < dims[i]) list.push_back(std::nullopt);
        list.push_back(in[first + i]);
    }
    return list;
}

/// Where loops cannot tell which place of `b`, if any, an element is written from.
VendorFunction update_strided(const Attrs& a) {
    return plain([strides = sizes_attr(a, "strides"), offset = size_attr(a, "offset")](In in) {
        at::Tensor result = at::empty(in[0].sizes(), in[0].options()).copy_(in[0]);
        result.as_strided(in[1].sizes(), strides, offset).copy_(in[1]);
        return result;
    });
}

/// ATen puts the index dims first if the indexed dims are not adjacent; the prim always puts them
/// where the first one stood.
at::Tensor move_index_dims(const at::Tensor& value, const Ints& dims, std::int64_t index_rank,
                           bool to_front) {
    const bool adjacent = dims.back() - dims.front() + 1 == static_cast<std::int64_t>(dims.size());
    if (adjacent) return value;
    Ints front(index_rank), there(index_rank);
    for (std::int64_t i = 0; i < index_rank; ++i) {
        front[i] = i;
        there[i] = dims.front() + i;
    }
    return to_front ? at::movedim(value, there, front) : at::movedim(value, front, there);
}

VendorFunction indexing(Prim prim, const Attrs& a) {
    const auto dim = a.has("dim") ? a.get<std::int64_t>("dim") : 0;
    switch (prim) {
        case Prim::Gather:
            return plain([=](In in) { return at::gather(in[0], dim, in[1]); });
        case Prim::Take:
            return plain([dims = a.get<Ints>("dims")](In in) {
                return move_index_dims(at::index(in[0], index_list(in, 1, dims)), dims, in[1].dim(),
                                       false);
            });
        case Prim::Put:
            return plain([dims = a.get<Ints>("dims"), add = a.get<bool>("accumulate")](In in) {
                const at::Tensor value = move_index_dims(in[1], dims, in[2].dim(), true);
                return at::index_put(in[0], index_list(in, 2, dims), value, add);
            });
        case Prim::Scatter:
            return plain([=](In in) { return at::scatter(in[0], dim, in[1], in[2]); });
        case Prim::ScatterReduce:
            return plain([=, reduce = a.get<std::string>("reduce"),
                          self = a.get<bool>("include_self")](In in) {
                if (reduce == "sum" && self) return at::scatter_add(in[0], dim, in[1], in[2]);
                return at::scatter_reduce(in[0], dim, in[1], in[2], reduce, self);
            });
        case Prim::MaskedScatter:
            return plain([](In in) { return at::masked_scatter(in[0], in[1], in[2]); });
        case Prim::Searchsorted:
            return plain([narrow = a.get<DType>("dtype") == DType::I32,
                          right = a.get<bool>("right")](In in) {
                return at::searchsorted(in[0], in[1], narrow, right);
            });
        case Prim::EmbeddingBag: {
            const std::string& mode = a.get<std::string>("mode");
            const std::int64_t number = mode == "sum" ? 0 : mode == "mean" ? 1 : 2;
            return plain([number](In in) {
                return std::get<0>(at::embedding_bag(in[0], in[1], in[2], false, number));
            });
        }
        default:
            return nullptr;
    }
}

VendorFunction sorting(Prim prim, const Attrs& a) {
    const auto dim = a.get<std::int64_t>("dim");
    switch (prim) {
        case Prim::Sort:
            return pair([=, down = a.get<bool>("descending"), stable = a.get<bool>("stable")](
                            In in) { return at::sort(in[0], stable, dim, down); });
        case Prim::Topk:
            return pair([=, k = size_attr(a, "k"), largest = a.get<bool>("largest"),
                         sorted = a.get<bool>("sorted")](In in) {
                return at::topk(in[0], k, dim, largest, sorted);
            });
        case Prim::Kthvalue:
            return pair([=, k = size_attr(a, "k")](In in) { return at::kthvalue(in[0], k, dim); });
        case Prim::Median:
            return pair([=, ignore = a.get<bool>("ignore_nan")](In in) {
                return ignore ? at::nanmedian(in[0], dim) : at::median(in[0], dim);
            });
        case Prim::Mode:
            return pair([=](In in) { return at::mode(in[0], dim); });
        default:
            return nullptr;
    }
}

VendorFunction scan(Prim prim, const Attrs& a) {
    const auto dim = a.get<std::int64_t>("dim");
    switch (prim) {
        case Prim::Cumsum:
            return plain([=](In in) { return at::cumsum(in[0], dim, in[0].scalar_type()); });
        case Prim::Cumprod:
            return plain([=](In in) { return at::cumprod(in[0], dim, in[0].scalar_type()); });
        case Prim::Cummax:
            return pair([=](In in) { return at::cummax(in[0], dim); });
        case Prim::Cummin:
            return pair([=](In in) { return at::cummin(in[0], dim); });
        case Prim::Logcumsumexp:
            return plain([=](In in) { return at::logcumsumexp(in[0], dim); });
        case Prim::LinearScan:
            return plain([=](In in) {
                at::Tensor out = at::empty_like(in[1]);
                for (std::int64_t t = 0; t < in[1].size(dim); ++t) {
                    at::Tensor row = out.select(dim, t);
                    row.copy_(in[1].select(dim, t));
                    if (t > 0) row.addcmul_(in[0].select(dim, t), out.select(dim, t - 1));
                }
                return out;
            });
        default:
            return nullptr;
    }
}

/// `planned`, if its elements lie in a row, or a tensor like it.
at::Tensor row_for(const at::Tensor& planned, c10::IntArrayRef sizes, at::TensorOptions options) {
    return planned.defined() && planned.is_contiguous() ? planned : at::empty(sizes, options);
}
template <class T>
std::span<T> elements(const at::Tensor& t) {
    return {t.mutable_data_ptr<T>(), static_cast<std::size_t>(t.numel())};
}

/// Ones with the probabilities `p`; dropout's are one number.
at::Tensor draw_ones(const at::Tensor& p, at::TensorOptions options, const at::Tensor& planned) {
    at::Tensor ones = row_for(planned, p.sizes(), options);
    const bool one_number = std::ranges::all_of(p.strides(), [](auto s) { return s == 0; });
    if (p.is_cpu() && one_number && p.numel() > 0 && p.scalar_type() == at::kDouble &&
        ones.scalar_type() == at::kBool && eager_draws_as_known() &&
        draw_bernoulli(at::detail::getDefaultCPUGenerator(), *p.const_data_ptr<double>(),
                       elements<bool>(ones)))
        return ones;
    return ones.bernoulli_(p);
}

at::Tensor unit_numbers(c10::IntArrayRef sizes, at::TensorOptions options,
                        const at::Tensor& planned) {
    at::Tensor numbers = row_for(planned, sizes, options);
    const at::Generator& from = at::detail::getDefaultCPUGenerator();
    const bool known = eager_draws_as_known();
    if (known && numbers.scalar_type() == at::kFloat &&
        draw_uniform(from, elements<float>(numbers)))
        return numbers;
    if (known && numbers.scalar_type() == at::kDouble &&
        draw_uniform(from, elements<double>(numbers)))
        return numbers;
    return numbers.uniform_(0, 1);
}

VendorFunction random(Prim prim, const Attrs& a, c10::Device device) {
    const auto options = (a.has("dtype") ? options_attr(a) : at::TensorOptions()).device(device);
    const Ints sizes = a.has("sizes") ? sizes_attr(a, "sizes") : Ints{};
    const auto filled = [=](auto fill) {
        return plain([=](In) { return fill(at::empty(sizes, options)); });
    };
    switch (prim) {
        case Prim::RandState:
            return plain([=, n = a.get<std::int64_t>("increment")](In) {
                return take_random_state(device, n);
            });
        case Prim::RandUniform:
            if (device.is_cpu() && a.get<double>("low") == 0 && a.get<double>("high") == 1)
                return
                    [=](In, Out out) -> Tensors { return {unit_numbers(sizes, options, out[0])}; };
            return filled([low = a.get<double>("low"), high = a.get<double>("high")](at::Tensor t) {
                return t.uniform_(low, high);
            });
        case Prim::RandNormal:
            return filled([mean = a.get<double>("mean"), std = a.get<double>("std")](at::Tensor t) {
                return t.normal_(mean, std);
            });
        case Prim::RandInt:
            return filled([low = a.get<std::int64_t>("low"), high = a.get<std::int64_t>("high")](
                              at::Tensor t) { return t.random_(low, high); });
        case Prim::RandExponential:
            return filled(
                [rate = a.get<double>("rate")](at::Tensor t) { return t.exponential_(rate); });
        case Prim::RandBernoulli:
            return [=](In in, Out out) -> Tensors { return {draw_ones(in[0], options, out[0])}; };
        case Prim::RandPerm:
            return plain([=](In) { return at::randperm(sizes.at(0), options); });
        case Prim::Multinomial:
            return plain([n = a.get<std::int64_t>("count"), again = a.get<bool>("replacement")](
                             In in) { return at::multinomial(in[0], n, again); });
        default:
            return nullptr;
    }
}

VendorFunction linalg(Prim prim, const Attrs& a) {
    switch (prim) {
        case Prim::FftC2C:
            return plain(
                [d = a.get<Ints>("dims"), n = a.get<std::int64_t>("normalization"),
                 f = a.get<bool>("forward")](In in) { return at::_fft_c2c(in[0], d, n, f); });
        case Prim::FftR2C:
            return plain(
                [d = a.get<Ints>("dims"), n = a.get<std::int64_t>("normalization"),
                 o = a.get<bool>("onesided")](In in) { return at::_fft_r2c(in[0], d, n, o); });
        case Prim::FftC2R:
            return plain(
                [d = a.get<Ints>("dims"), n = a.get<std::int64_t>("normalization"),
                 l = size_attr(a, "last")](In in) { return at::_fft_c2r(in[0], d, n, l); });
        case Prim::Cholesky:
            return plain(
                [u = a.get<bool>("upper")](In in) { return at::linalg_cholesky(in[0], u); });
        case Prim::TriangularSolve:
            return plain([u = a.get<bool>("upper"), l = a.get<bool>("left"),
                          t = a.get<bool>("unitriangular")](In in) {
                return at::linalg_solve_triangular(in[0], in[1], u, l, t);
            });
        case Prim::Inverse:
            return plain([](In in) { return at::linalg_inv(in[0]); });
        case Prim::Det:
            return plain([](In in) { return at::linalg_det(in[0]); });
        case Prim::Trace:
            return plain([](In in) { return in[0].diagonal(0, -2, -1).sum(-1); });
        default:
            return nullptr;
    }
}

}  // namespace

VendorFunction stencil_function(Prim prim, const Attrs& attrs);  // vendor_stencil.cpp

VendorFunction vendor_function(Prim prim, const Attrs& attrs, c10::Device device) {
    VendorFunction f;
    switch (kind(prim)) {
        case PrimKind::Contraction:
            f = contraction(prim, attrs, device);
            break;
        case PrimKind::Indexing:
            f = indexing(prim, attrs);
            break;
        case PrimKind::Movement:
            if (prim == Prim::UpdateStrided) f = update_strided(attrs);
            break;
        case PrimKind::Sorting:
            f = sorting(prim, attrs);
            break;
        case PrimKind::Scan:
            f = scan(prim, attrs);
            break;
        case PrimKind::Random:
            f = random(prim, attrs, device);
            break;
        case PrimKind::Linalg:
            f = linalg(prim, attrs);
            break;
        case PrimKind::Stencil:
            f = stencil_function(prim, attrs);
            break;
        case PrimKind::Effect:
            if (prim == Prim::Barrier) f = plain([](In in) { return in[0]; });
            if (prim == Prim::Assert)
                f = plain([text = attrs.get<std::string>("message")](In in) {
                    if (!in[0].all().item<bool>())
                        throw FailedAssertion({__func__, __FILE__, __LINE__}, text);
                    return in[0];
                });
            break;
        default:
            break;
    }
    if (!f) throw NotSupported("no vendor form of the prim '" + std::string(name(prim)) + "'");
    return f;
}

}  // namespace ingot::trace
