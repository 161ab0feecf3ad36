// Pooling and resampling: windows and constant indices.
#include <c10/core/GradMode.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "schedule/legalize_windows.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The windows of a pooling, by spatial dim. Sizes of images may be symbolic where windows that
/// stick out at the end are left out.
struct Windows {
    std::size_t n;  // spatial dims
    Ints kernel, stride, padding, dilation;
    SymInts in;
    bool ceil;
    std::int64_t first;  // the first spatial dim of the operand

    static Ints per_dim(Ints v, std::size_t n, const Ints& otherwise) {
        if (v.empty()) return otherwise;
        if (v.size() == 1) v.resize(n, v[0]);
        return v;
    }
    Windows(Call& call, const at::Tensor& self, std::size_t spatial) : n(spatial) {
        kernel = per_dim(call.ints("kernel_size"), n, {});
        stride = per_dim(call.given("stride") ? call.ints("stride") : Ints{}, n, kernel);
        padding = per_dim(call.given("padding") ? call.ints("padding") : Ints{}, n, Ints(n, 0));
        dilation = per_dim(call.given("dilation") ? call.ints("dilation") : Ints{}, n, Ints(n, 1));
        ceil = call.flag("ceil_mode");
        first = self.dim() - static_cast<std::int64_t>(n);
        if (first < 1) throw UserError("pooling: too few dims");
        for (std::size_t i = 0; i < n; ++i) {
            if (kernel[i] <= 0 || stride[i] <= 0 || dilation[i] <= 0 || padding[i] < 0 ||
                padding[i] > (dilation[i] * (kernel[i] - 1) + 1) / 2)
                throw UserError("pooling: bad kernel, stride, padding or dilation");
            c10::SymInt size = self.sym_size(first + static_cast<std::int64_t>(i));
            if (ceil) size = concrete(size);
            if (size + (2 * padding[i] - span(i)) < 0)
                throw UserError("pooling: the window is larger than the input");
            in.push_back(std::move(size));
        }
    }
    /// How much of the operand a window covers.
    std::int64_t span(std::size_t i) const { return dilation[i] * (kernel[i] - 1) + 1; }
    /// How many windows there are along a dim; what is symbolic is specialised.
    std::int64_t count(std::size_t i) const {
        const std::int64_t size = concrete(in[i]);
        const std::int64_t room = size + 2 * padding[i] - span(i);
        std::int64_t o = (room + (ceil ? stride[i] - 1 : 0)) / stride[i] + 1;
        if (ceil && (o - 1) * stride[i] >= size + padding[i]) --o;
        return o;
    }
    /// `v` padded with `value` and cut into windows: the last n dims walk inside a window.
    ValueId cut(Emitter& e, ValueId v, const Scalar& value) const {
        SymInts low(at(e.rank(v)), 0), high = low;
        Ints dims;
        for (std::size_t i = 0; i < n; ++i) {
            std::size_t d = at(first) + i;
            low[d] = padding[i];
            if (const auto size = in[i].maybe_as_int())  // negative: the rest is never looked at
                high[d] = (count(i) - 1) * stride[i] + span(i) - *size - padding[i];
            else
                high[d] = padding[i];
            dims.push_back(static_cast<std::int64_t>(d));
        }
        v = e.pad(v, low, high, value);
        return e.op(Prim::Window, {v},
                    {{"dims", dims},
                     {"sizes", to_sizes(kernel)},
                     {"steps", stride},
                     {"dilations", dilation}});
    }
    Ints window_dims(std::int64_t rank) const {
        Ints dims(n);
        std::iota(dims.begin(), dims.end(), rank);
        return dims;
    }
};
SymInts pooled_strides(const at::Tensor& self, const SymInts& sizes) {
    return format_strides(sizes, suggested_format(layout_of(self)));
}
/// Averages over images with depth lie in rows, however the image lies.
SymInts averaged_strides(const at::Tensor& self, const SymInts& sizes, std::size_t spatial) {
    return spatial == 3 ? contiguous(sizes) : pooled_strides(self, sizes);
}
Scalar lowest(DType t) {
    if (is_float(t)) return -std::numeric_limits<double>::infinity();
    switch (t) {
        case DType::I8:
            return -128;
        case DType::I16:
            return -32768;
        case DType::I32:
            return std::int64_t{-2147483648LL};
        case DType::I64:
            return std::numeric_limits<std::int64_t>::min();
        default:
            return 0;
    }
}
template <std::size_t n>
void lower_max_pool(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    Windows w(call, self, n);
    // Only a batch may be empty.
    const std::int64_t inner = self.dim() - static_cast<std::int64_t>(n) - 1;
    if (inner > 1) throw UserError("max pooling: too many dims");
    for (std::int64_t d = inner; d < self.dim(); ++d)
        if (self.sym_size(d) == 0) throw UserError("max pooling: an image without elements");
    DType type = to_dtype(self.scalar_type());
    ValueId x = call.read(self);
    // The indices come from a node of its own, dead unless somebody, such as a backward, reads
    // them.
    const bool differentiable = c10::GradMode::is_enabled() && self.requires_grad();
    std::vector<ValueId> both = e.ops(Prim::MaxPoolIndices, {x},
                                      {{"kernel", w.kernel},
                                       {"stride", w.stride},
                                       {"padding", w.padding},
                                       {"dilation", w.dilation},
                                       {"ceil", call.flag("ceil_mode")}});
    ValueId y = both[0];
    if (!differentiable)
        y = e.reduce(Prim::Amax, w.cut(e, x, lowest(type)), w.window_dims(self.dim()), false);
    SymInts strides = pooled_strides(self, e.sizes(y));
    call.give(y, strides, self.device());
    call.give(both[1], strides, self.device());
}

/// Where an element lies in few windows (on a GPU of 16 bits): it gathers what it is given. Any
/// other is a call. Positions are read as narrow as they are, which is how they are kept.
void lower_max_pool_backward(Call& call) {
    at::Tensor self = call.tensor("self");
    if (self.dim() != 4 || !sched::is_gathered_type(to_dtype(self.scalar_type()), self.is_cuda()))
        throw NotSupported("a max pooling's gradient as a call");
    Emitter& e = call.emit();
    const Windows w(call, self, 2);
    if (!sched::few_windows(w.kernel, w.stride) || w.dilation != Ints{1, 1})
        throw NotSupported("a max pooling's gradient as a call");
    const auto height = w.in[0].maybe_as_int(), width = w.in[1].maybe_as_int();
    const std::int64_t last = height && width ? *height * *width - 1 : -1;
    if (last < 0 || last >= sched::kLargestImage)
        throw NotSupported("a max pooling's gradient as a call");
    const bool narrow = last <= std::numeric_limits<std::int16_t>::max();
    const ValueId indices =
        e.convert(call.read(call.tensor("indices")), narrow ? DType::I16 : DType::I32);
    const SymInts sizes = self.sym_sizes().vec();
    const ValueId grad = e.op(Prim::MaxPoolGrad, {call.read(call.tensor("grad_output")), indices},
                              {{"sizes", to_sizes(sizes)},
                               {"kernel", w.kernel},
                               {"stride", w.stride},
                               {"padding", w.padding}});
    call.give(grad, pooled_strides(self, sizes), self.device());
}

/// How many elements count in each window along one dim; one number for all if it is the same.
std::vector<double> counts(const Windows& w, std::size_t i, bool with_padding) {
    if (!w.ceil && (with_padding || w.padding[i] == 0)) return {static_cast<double>(w.kernel[i])};
    std::vector<double> out;
    const std::int64_t size = concrete(w.in[i]);
    for (std::int64_t o = 0; o < w.count(i); ++o) {
        std::int64_t start = o * w.stride[i] - w.padding[i];
        std::int64_t end = std::min(start + w.kernel[i], size + w.padding[i]);
        if (!with_padding) {
            start = std::max<std::int64_t>(start, 0);
            end = std::min(end, size);
        }
        out.push_back(static_cast<double>(end - start));
    }
    return out;
}
/// Numbers as a constant vector of type `t` (f32 or f64).
ValueId vector_of(Emitter& e, DType t, const std::vector<double>& numbers) {
    auto data = std::make_shared<std::vector<std::uint8_t>>(numbers.size() * at(bytes(t)));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (t == DType::F64) {
            std::memcpy(data->data() + i * 8, &numbers[i], 8);
        } else if (t == DType::F32) {
            auto f = static_cast<float>(numbers[i]);
            std::memcpy(data->data() + i * 4, &f, 4);
        } else {
            auto k = static_cast<std::int64_t>(numbers[i]);
            std::memcpy(data->data() + i * 8, &k, 8);
        }
    }
    std::shared_ptr<const std::vector<std::uint8_t>> frozen = data;
    return e.op(Prim::Constant, {},
                {{"dtype", t},
                 {"sizes", to_sizes(Ints{static_cast<std::int64_t>(numbers.size())})},
                 {"data", frozen}});
}
bool uniform(const std::vector<double>& v) {
    return std::all_of(v.begin(), v.end(), [&](double x) { return x == v[0]; });
}
template <std::size_t n>
void lower_avg_pool(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    if (!is_float(type)) throw NotSupported("average pooling of integers");
    Windows w(call, self, n);
    ValueId x = e.widen(call.read(self));
    ValueId y = e.reduce(Prim::Sum, w.cut(e, x, 0.0), w.window_dims(self.dim()), false);
    SymInts sizes = e.sizes(y);
    bool with_padding = call.flag("count_include_pad", true);
    if (call.given("divisor_override")) {
        const std::int64_t divisor = call.integer("divisor_override");
        if (divisor == 0) throw UserError("pooling: the divisor is zero");
        y = e.div(y, static_cast<double>(divisor));
    } else {
        double fixed = 1;
        std::optional<ValueId> divisor;
        for (std::size_t i = 0; i < n; ++i) {
            std::vector<double> c = counts(w, i, with_padding);
            if (c.empty() || uniform(c)) {
                fixed *= c.empty() ? 1 : c[0];
                continue;
            }
            Ints shape(n, 1);
            shape[i] = static_cast<std::int64_t>(c.size());
            ValueId v = e.expand(e.reshape(vector_of(e, e.dtype(y), c), shape), sizes);
            divisor = divisor ? e.mul(*divisor, v) : v;
        }
        if (divisor)
            y = e.div(y, e.mul(*divisor, fixed));
        else
            y = e.div(y, fixed);
    }
    call.give(e.convert(y, type), averaged_strides(self, sizes, n), self.device());
}

/// The bins of adaptive pooling along one dim: [floor(i n / o), ceil((i + 1) n / o)).
struct Bins {
    std::vector<double> start, length;
    std::int64_t longest = 0;
};
Bins bins(std::int64_t in, std::int64_t out) {
    Bins b;
    for (std::int64_t i = 0; i < out; ++i) {
        std::int64_t s = i * in / out, end = ((i + 1) * in + out - 1) / out;
        b.start.push_back(static_cast<double>(s));
        b.length.push_back(static_cast<double>(end - s));
        b.longest = std::max(b.longest, end - s);
    }
    return b;
}
template <std::size_t n>
void lower_adaptive_avg(Call& call) {
    at::Tensor self = call.tensor("self");
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    if (!is_float(type)) throw NotSupported("average pooling of integers");
    Ints out = call.ints("output_size");
    ValueId x = e.widen(call.read(self));
    DType wide = e.dtype(x);
    for (std::size_t i = 0; i < n; ++i) {
        std::int64_t d = self.dim() - static_cast<std::int64_t>(n - i), size = self.size(d);
        if (size == 0 || out[i] < 0) throw UserError("adaptive pooling: bad sizes");
        Bins b = bins(size, out[i]);
        ValueId start = vector_of(e, DType::I64, b.start),
                length = vector_of(e, DType::I64, b.length);
        Ints grid{out[i], b.longest};
        ValueId k = e.iota(DType::I64, grid, 1);
        ValueId inside = e.op(Prim::Lt, {k, e.expand(e.reshape(length, {out[i], 1}), grid)});
        ValueId index = e.add(k, e.expand(e.reshape(start, {out[i], 1}), grid));
        index = e.op(Prim::Minimum, {index, e.number(index, static_cast<double>(size - 1))});
        ValueId v = e.op(Prim::Take, {x, index}, {{"dims", Ints{d}}});
        SymInts sizes = e.sizes(v);
        Ints place(sizes.size(), 1);
        place[at(d)] = out[i];
        place[at(d) + 1] = b.longest;
        v = e.select(e.expand(e.reshape(inside, place), sizes), v, e.number(v, 0));
        ValueId sum = e.reduce(Prim::Sum, v, {d + 1}, false);
        Ints column(sizes.size() - 1 - at(d), 1);
        column[0] = out[i];
        ValueId count = e.expand(e.reshape(e.convert(length, wide), column), e.sizes(sum));
        x = e.div(sum, count);
    }
    call.give(e.convert(x, type), averaged_strides(self, e.sizes(x), n), self.device());
}

// ---- resampling: one dim after the other, taps at constant indices with constant weights ----
struct Taps {
    std::vector<std::vector<double>> index, weight;  // by tap
};
enum class Sampling { Nearest, NearestExact, Linear, Cubic };
double cubic_near(double x) { return ((-0.75 + 2) * x - (-0.75 + 3)) * x * x + 1; }
double cubic_far(double x) {
    constexpr double a = -0.75;
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}
/// `Real` is the type in which eager computes ratios and positions: f64 for blends of f64.
template <class Real>
Taps taps(Sampling mode, std::int64_t in, std::int64_t out, bool align,
          std::optional<double> scale) {
    std::size_t count = mode == Sampling::Cubic ? 4 : mode == Sampling::Linear ? 2 : 1;
    Taps t{std::vector<std::vector<double>>(count), std::vector<std::vector<double>>(count)};
    Real ratio = align
                     ? (out > 1 ? static_cast<Real>(in - 1) / static_cast<Real>(out - 1) : Real{0})
                 : scale && *scale > 0 ? static_cast<Real>(1.0 / *scale)
                                       : static_cast<Real>(in) / static_cast<Real>(out);
    for (std::int64_t o = 0; o < out; ++o) {
        auto position = static_cast<Real>(o);
        auto clamp = [&](std::int64_t i) {
            return static_cast<double>(std::clamp<std::int64_t>(i, 0, in - 1));
        };
        if (count == 1) {
            Real p = mode == Sampling::Nearest ? position * ratio : (position + Real{0.5}) * ratio;
            t.index[0].push_back(clamp(static_cast<std::int64_t>(std::floor(p))));
            t.weight[0].push_back(1);
            continue;
        }
        Real p = align ? ratio * position : ratio * (position + Real{0.5}) - Real{0.5};
        if (mode == Sampling::Linear && p < 0) p = 0;
        auto base = static_cast<std::int64_t>(std::floor(p));
        if (mode == Sampling::Linear) base = std::min(base, in - 1);
        double f = p - static_cast<Real>(base);
        if (mode == Sampling::Linear) f = std::clamp(f, 0.0, 1.0);
        double linear[] = {1 - f, f};
        double cubic[] = {cubic_far(f + 1), cubic_near(f), cubic_near(1 - f), cubic_far(2 - f)};
        for (std::size_t k = 0; k < count; ++k) {
            std::int64_t shift =
                count == 4 ? static_cast<std::int64_t>(k) - 1 : static_cast<std::int64_t>(k);
            t.index[k].push_back(clamp(base + shift));
            t.weight[k].push_back(count == 4 ? cubic[k] : linear[k]);
        }
    }
    return t;
}
/// By how much every element is repeated, side by side; 0 where the places are others.
std::int64_t repeats(const Taps& t, std::int64_t size, std::int64_t out) {
    if (t.index.size() != 1 || out % size != 0) return 0;
    for (std::int64_t o = 0; o < out; ++o)
        if (t.index[0][at(o)] != static_cast<double>(o / (out / size))) return 0;
    return out / size;
}
/// The same as places computed, not read.
ValueId repeated(Emitter& e, ValueId x, std::int64_t d, std::int64_t times) {
    SymInts sizes = e.sizes(x), split = sizes, spread, joined = sizes;
    split.insert(split.begin() + d + 1, 1);
    spread = split;
    spread[at(d + 1)] = times;
    joined[at(d)] = sizes[at(d)] * times;
    return e.reshape(e.expand(e.reshape(x, split), spread), joined);
}
template <Sampling mode, std::size_t n>
void lower_upsample(Call& call) {
    bool vec = call.find("input") != nullptr;
    at::Tensor self = call.tensor(vec ? "input" : "self");
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    std::vector<std::optional<double>> scales(n);
    Ints out;
    if (vec && call.given("scale_factors")) {
        std::vector<double> f = call.at("scale_factors").toDoubleVector();
        for (std::size_t i = 0; i < n; ++i) {
            scales[i] = f[i];
            out.push_back(static_cast<std::int64_t>(
                static_cast<double>(self.size(2 + static_cast<std::int64_t>(i))) * f[i]));
        }
    } else {
        out = call.ints("output_size");
        const char* names[] = {"scales_d", "scales_h", "scales_w"};
        if (!vec)
            for (std::size_t i = 0; i < n; ++i) {
                const char* name = n == 1 ? "scales" : names[3 - n + i];
                if (call.given(name)) scales[i] = call.real(name);
            }
    }
    bool align = call.flag("align_corners");
    bool blends = mode == Sampling::Linear || mode == Sampling::Cubic;
    if (blends && !is_float(type)) throw NotSupported("interpolation of integers");
    ValueId x = blends ? e.widen(call.read(self)) : call.read(self);
    for (std::size_t i = 0; i < n; ++i) {
        std::int64_t d = self.dim() - static_cast<std::int64_t>(n - i), size = self.size(d);
        if (size <= 0 || out[i] <= 0) throw UserError("upsampling: sizes must be positive");
        if (size == out[i] && (!scales[i] || *scales[i] == 1)) continue;
        const Taps t = blends && type == DType::F64
                           ? taps<double>(mode, size, out[i], align, scales[i])
                           : taps<float>(mode, size, out[i], align, scales[i]);
        if (const std::int64_t times = repeats(t, size, out[i]); self.is_cuda() && times > 0) {
            x = repeated(e, x, d, times);
            continue;
        }
        std::optional<ValueId> sum;
        for (std::size_t k = 0; k < t.index.size(); ++k) {
            ValueId v =
                e.op(Prim::Take, {x, vector_of(e, DType::I64, t.index[k])}, {{"dims", Ints{d}}});
            if (blends) {
                Ints column(at(self.dim() - d), 1);
                column[0] = out[i];
                v = e.mul(v, e.expand(e.reshape(vector_of(e, e.dtype(v), t.weight[k]), column),
                                      e.sizes(v)));
            }
            sum = sum ? e.add(*sum, v) : v;
        }
        x = *sum;
    }
    call.give(e.convert(x, type), pooled_strides(self, e.sizes(x)), self.device());
}

}  // namespace

std::span<const LoweringEntry> pool_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"max_pool2d_with_indices", lower_max_pool<2>},
        {"max_pool2d_with_indices_backward", lower_max_pool_backward},
        {"max_pool3d_with_indices", lower_max_pool<3>},
        {"avg_pool1d", lower_avg_pool<1>},
        {"avg_pool2d", lower_avg_pool<2>},
        {"avg_pool3d", lower_avg_pool<3>},
        {"_adaptive_avg_pool2d", lower_adaptive_avg<2>},
        {"_adaptive_avg_pool3d", lower_adaptive_avg<3>},
        {"upsample_nearest1d", lower_upsample<Sampling::Nearest, 1>},
        {"upsample_nearest2d", lower_upsample<Sampling::Nearest, 2>},
        {"upsample_nearest3d", lower_upsample<Sampling::Nearest, 3>},
        {"_upsample_nearest_exact1d", lower_upsample<Sampling::NearestExact, 1>},
        {"_upsample_nearest_exact2d", lower_upsample<Sampling::NearestExact, 2>},
        {"_upsample_nearest_exact3d", lower_upsample<Sampling::NearestExact, 3>},
        {"upsample_linear1d", lower_upsample<Sampling::Linear, 1>},
        {"upsample_bilinear2d", lower_upsample<Sampling::Linear, 2>},
        {"upsample_trilinear3d", lower_upsample<Sampling::Linear, 3>},
        {"upsample_bicubic2d", lower_upsample<Sampling::Cubic, 2>},
    };
    return table;
}

}  // namespace ingot::trace
