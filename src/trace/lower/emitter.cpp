// Building blocks of lowerings and the rules of strides; see emitter.h.
#include "trace/lower/emitter.h"

#include <c10/core/MemoryFormat.h>

#include <numeric>

namespace ingot::trace {

ValueId Emitter::convert(ValueId v, DType to) {
    return dtype(v) == to ? v : op(Prim::Convert, {v}, {{"dtype", to}});
}
ValueId Emitter::full(DType dtype, const Ints& sizes, const Scalar& value) {
    return op(Prim::Full, {}, {{"dtype", dtype}, {"sizes", to_sizes(sizes)}, {"value", value}});
}
ValueId Emitter::full_like(ValueId v, DType dtype, double value) {
    Scalar s = is_complex(dtype)      ? Scalar(std::complex<double>(value))
               : is_float(dtype)      ? Scalar(value)
               : dtype == DType::Bool ? Scalar(value != 0)
                                      : Scalar(static_cast<std::int64_t>(value));
    return op(Prim::Full, {}, {{"dtype", dtype}, {"sizes", type(v).sizes}, {"value", s}});
}
ValueId Emitter::expand(ValueId v, const Ints& to) {
    Ints from = sizes(v);
    if (from == to) return v;
    if (from.size() > to.size()) throw UserError("a tensor cannot be expanded to fewer dims");
    Ints dims(from.size());
    std::iota(dims.begin(), dims.end(), static_cast<std::int64_t>(to.size() - from.size()));
    for (std::size_t i = 0; i < from.size(); ++i)
        if (from[i] != 1 && from[i] != to[to.size() - from.size() + i])
            throw UserError("sizes do not match in a broadcast");
    return op(Prim::Broadcast, {v}, {{"sizes", to_sizes(to)}, {"dims", dims}});
}
ValueId Emitter::reshape(ValueId v, const Ints& to) {
    return sizes(v) == to ? v : op(Prim::Reshape, {v}, {{"sizes", to_sizes(to)}});
}
ValueId Emitter::permute(ValueId v, const Ints& dims) {
    for (std::size_t i = 0; i < dims.size(); ++i)
        if (dims[i] != static_cast<std::int64_t>(i))
            return op(Prim::Permute, {v}, {{"dims", dims}});
    return v;
}
ValueId Emitter::transpose(ValueId v, std::int64_t a, std::int64_t b) {
    Ints dims(static_cast<std::size_t>(rank(v)));
    std::iota(dims.begin(), dims.end(), 0);
    if (!dims.empty())
        std::swap(dims[static_cast<std::size_t>(a)], dims[static_cast<std::size_t>(b)]);
    return permute(v, dims);
}
ValueId Emitter::slice(ValueId v, std::int64_t dim, std::int64_t start, std::int64_t end,
                       std::int64_t step) {
    Ints starts(static_cast<std::size_t>(rank(v)), 0), ends = sizes(v), steps(starts.size(), 1);
    auto d = static_cast<std::size_t>(dim);
    if (start == 0 && end == ends[d] && step == 1) return v;
    starts[d] = start;
    ends[d] = end;
    steps[d] = step;
    return op(Prim::Slice, {v},
              {{"starts", to_sizes(starts)}, {"ends", to_sizes(ends)}, {"steps", steps}});
}
ValueId Emitter::select(ValueId v, std::int64_t dim, std::int64_t index) {
    Ints to = sizes(v);
    to.erase(to.begin() + dim);
    return reshape(slice(v, dim, index, index + 1), to);
}
ValueId Emitter::unsqueeze(ValueId v, std::int64_t dim) {
    Ints to = sizes(v);
    to.insert(to.begin() + dim, 1);
    return reshape(v, to);
}
ValueId Emitter::pad(ValueId v, const Ints& low, const Ints& high, const Scalar& value) {
    if (std::all_of(low.begin(), low.end(), [](auto x) { return x == 0; }) && low == high) return v;
    return op(Prim::Pad, {v}, {{"low", to_sizes(low)}, {"high", to_sizes(high)}, {"value", value}});
}
ValueId Emitter::iota(DType dtype, const Ints& sizes, std::int64_t dim, const Scalar& start,
                      const Scalar& step) {
    return op(Prim::Iota, {},
              {{"dtype", dtype},
               {"sizes", to_sizes(sizes)},
               {"dim", dim},
               {"start", start},
               {"step", step}});
}
ValueId Emitter::reduce(Prim prim, ValueId v, const Ints& dims, bool keep, Attrs more) {
    Ints to = sizes(v);
    Ints sorted = dims;
    std::sort(sorted.begin(), sorted.end());
    Attrs attrs{{"dims", sorted}};
    for (const Attr& a : more.list()) attrs.set(a.key, a.value);
    ValueId out = op(prim, {v}, std::move(attrs));
    if (!keep) return out;
    for (std::int64_t d : sorted) to[static_cast<std::size_t>(d)] = 1;
    return reshape(out, to);
}
ValueId Emitter::spread(ValueId reduced, const Ints& dims, const Ints& to) {
    Ints kept;
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(to.size()); ++d)
        if (std::find(dims.begin(), dims.end(), d) == dims.end()) kept.push_back(d);
    if (kept.size() == to.size()) return reduced;
    return op(Prim::Broadcast, {reduced}, {{"sizes", to_sizes(to)}, {"dims", kept}});
}

std::int64_t numel(const Ints& sizes) {
    std::int64_t n = 1;
    for (std::int64_t s : sizes) n *= s;
    return n;
}
Ints contiguous(const Ints& sizes) {
    Ints strides(sizes.size());
    std::int64_t next = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
        strides[i] = next;
        next *= std::max<std::int64_t>(sizes[i], 1);
    }
    return strides;
}
Ints format_strides(const Ints& sizes, c10::MemoryFormat format) {
    if (format == c10::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(sizes);
    if (format == c10::MemoryFormat::ChannelsLast3d)
        return c10::get_channels_last_strides_3d(sizes);
    return contiguous(sizes);
}

bool is_contiguous(const Layout& l, c10::MemoryFormat format) {
    if (format == c10::MemoryFormat::Contiguous) {
        std::int64_t next = 1;
        for (std::size_t i = l.sizes.size(); i-- > 0;) {
            if (l.sizes[i] == 0) return true;
            if (l.sizes[i] != 1 && l.strides[i] != next) return false;
            next *= l.sizes[i];
        }
        return true;
    }
    std::size_t rank = format == c10::MemoryFormat::ChannelsLast ? 4 : 5;
    if (l.sizes.size() != rank) return false;
    std::int64_t next = 1;
    Ints order{1};
    for (std::size_t d = rank - 1; d >= 2; --d) order.push_back(static_cast<std::int64_t>(d));
    order.push_back(0);
    for (std::int64_t d : order) {
        auto i = static_cast<std::size_t>(d);
        if (l.sizes[i] == 1) continue;
        if (l.strides[i] != next) return false;
        next *= l.sizes[i];
    }
    return true;
}

bool is_dense(const Layout& l) {
    Ints order(l.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    auto at = [](const Ints& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
    if (order.size() == 1) return l.sizes[0] < 2 || l.strides[0] == 1;
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        if (at(l.sizes, a) < 2) return false;
        if (at(l.sizes, b) < 2) return true;
        return at(l.strides, a) < at(l.strides, b);
    });
    std::int64_t next = 1;
    for (std::int64_t d : order) {
        if (at(l.sizes, d) < 2) return true;
        if (at(l.strides, d) != next) return false;
        next *= at(l.sizes, d);
    }
    return true;
}

c10::MemoryFormat suggested_format(const Layout& l) {
    auto is_strides_like = [&](c10::MemoryFormat f) {
        return f == c10::MemoryFormat::ChannelsLast
                   ? c10::is_channels_last_strides_2d<std::int64_t>(l.sizes, l.strides)
                   : c10::is_channels_last_strides_3d<std::int64_t>(l.sizes, l.strides);
    };
    if (l.sizes.size() == 4 && is_strides_like(c10::MemoryFormat::ChannelsLast))
        return c10::MemoryFormat::ChannelsLast;
    if (l.sizes.size() == 5 && is_strides_like(c10::MemoryFormat::ChannelsLast3d))
        return c10::MemoryFormat::ChannelsLast3d;
    return c10::MemoryFormat::Contiguous;
}

namespace {

/// TensorIterator::reorder_dimensions: which of two dims is the outer one, asked of all operands.
int order_of(std::size_t dim0, std::size_t dim1, const Ints& shape,
             const std::vector<Ints>& strides) {
    for (const Ints& s : strides) {
        std::int64_t a = s[dim0], b = s[dim1];
        if (a == 0 || b == 0) continue;
        if (a < b) return -1;
        if (a > b) return 1;
        if (shape[dim0] > shape[dim1]) return 1;
    }
    return 0;
}

}  // namespace

Ints iterator_strides(const Ints& shape, std::span<const Layout> operands) {
    std::size_t n = shape.size();
    bool same = std::all_of(operands.begin(), operands.end(),
                            [&](const Layout& l) { return l.sizes == shape; });
    auto all = [&](auto predicate) {
        return std::all_of(operands.begin(), operands.end(), predicate);
    };
    if (same && !operands.empty()) {
        if (all([](const Layout& l) { return is_contiguous(l); })) return contiguous(shape);
        for (auto f : {c10::MemoryFormat::ChannelsLast})
            if (all([&](const Layout& l) { return is_contiguous(l, f); }))
                return format_strides(shape, f);
        if (all([&](const Layout& l) { return is_dense(l) && l.strides == operands[0].strides; }))
            return operands[0].strides;
    }
    std::vector<Ints> strides;
    for (const Layout& l : operands) {
        Ints s(n, 0);
        std::size_t offset = n - l.sizes.size();
        for (std::size_t i = 0; i < l.sizes.size(); ++i)
            s[offset + i] = l.sizes[i] == 1 && shape[offset + i] != 1 ? 0 : l.strides[i];
        strides.push_back(std::move(s));
    }
    std::vector<std::size_t> perm(n);  // innermost first
    for (std::size_t i = 0; i < n; ++i) perm[i] = n - 1 - i;
    for (std::size_t i = 1; i < n; ++i) {
        std::size_t dim1 = i;
        for (std::size_t dim0 = i; dim0-- > 0;) {
            int order = order_of(perm[dim0], perm[dim1], shape, strides);
            if (order > 0) {
                std::swap(perm[dim0], perm[dim1]);
                dim1 = dim0;
            } else if (order < 0) {
                break;
            }
        }
    }
    bool plain = true;
    for (std::size_t i = 0; i < n; ++i) plain = plain && perm[i] == n - 1 - i;
    if (plain) return contiguous(shape);
    Ints out(n);
    std::int64_t next = 1;
    for (std::size_t d : perm) {
        out[d] = next;
        next *= shape[d];
    }
    return out;
}

Ints preserved_strides(const Layout& l) {
    if (is_dense(l)) return l.strides;
    // infer_dense_strides orders like TensorIterator with one operand.
    std::size_t n = l.sizes.size();
    std::vector<Ints> strides{l.strides};
    std::vector<std::size_t> perm(n);
    for (std::size_t i = 0; i < n; ++i) perm[i] = n - 1 - i;
    for (std::size_t i = 1; i < n; ++i) {
        std::size_t dim1 = i;
        for (std::size_t dim0 = i; dim0-- > 0;) {
            int order = order_of(perm[dim0], perm[dim1], l.sizes, strides);
            if (order > 0) {
                std::swap(perm[dim0], perm[dim1]);
                dim1 = dim0;
            } else if (order < 0) {
                break;
            }
        }
    }
    Ints out(n);
    std::int64_t next = 1;
    for (std::size_t d : perm) {
        out[d] = next;
        if (l.sizes[d] > 1) next *= l.sizes[d];
    }
    return out;
}

Ints broadcast_sizes(const Ints& a, const Ints& b) {
    std::size_t n = std::max(a.size(), b.size());
    Ints out(n);
    for (std::size_t i = 0; i < n; ++i) {
        std::int64_t x = i < n - a.size() ? 1 : a[i - (n - a.size())];
        std::int64_t y = i < n - b.size() ? 1 : b[i - (n - b.size())];
        if (x != y && x != 1 && y != 1) throw UserError("sizes do not match in a broadcast");
        out[i] = x == 1 ? y : x;
    }
    return out;
}

}  // namespace ingot::trace
