// Building blocks of lowerings and the rules of strides; see emitter.h.
#include "trace/lower/emitter.h"

#include <c10/core/MemoryFormat.h>

#include <numeric>

#include "ir/assumed.h"
#include "trace/torch_compat.h"

namespace ingot::trace {

namespace {
/// Whether all values of the type are below the largest f8e4m3.
bool is_narrower(DType t) { return t == DType::Bool || t == DType::U8 || t == DType::I8; }
/// Lowerings meet what eager would refuse before it does.
void check_dim(std::int64_t dim, std::int64_t rank) {
    if (dim < 0 || dim >= rank) throw UserError("a dim that the tensor does not have");
}
}  // namespace

void Emitter::check_sizes(Prim prim, const std::vector<ValueId>& operands, const Attrs& attrs) {
    std::vector<Type> types;
    for (ValueId v : operands) types.push_back(graph_.type(v));
    symbols_.require_equal(assumed_equalities(prim, types, attrs));
}

ValueId Emitter::convert(ValueId v, DType to) {
    if (dtype(v) == to) return v;
    if (to == DType::F8E4M3 && !is_narrower(dtype(v)) && float8_saturates()) {
        v = convert(v, dtype(v) == DType::F64 ? DType::F64 : DType::F32);
        v = op(Prim::Clamp, {v, number(v, -448), number(v, 448)});
    }
    return op(Prim::Convert, {v}, {{"dtype", to}});
}
ValueId Emitter::full(DType dtype, const SymInts& sizes, const Scalar& value) {
    return op(Prim::Full, {}, {{"dtype", dtype}, {"sizes", to_sizes(sizes)}, {"value", value}});
}
ValueId Emitter::size_value(DType dtype, const c10::SymInt& n) {
    if (auto number = n.maybe_as_int()) {
        if (is_integral(dtype)) return full(dtype, {}, Scalar(*number));
        return full(dtype, {}, Scalar(static_cast<double>(*number)));
    }
    // Only positive numbers are sizes.
    constexpr std::int64_t kLeast = -(std::int64_t{1} << 42);
    const std::int64_t low = unwrap(n).range().lo;
    if (low < 1 && low > kLeast) {
        const ValueId up = size_value(DType::I64, n - low + 1);
        return convert(add(up, full(DType::I64, {}, Scalar(low - 1))), dtype);
    }
    if (n < 1) {  // of what sign it is becomes a guard
        if (n == 0) return size_value(dtype, 0);
        return op(Prim::Neg, {size_value(dtype, -n)});
    }
    // The last element of 1, 2, ..., n: index arithmetic all the way down, no memory.
    ValueId up = iota(DType::I64, {n}, 0, 1);
    return convert(reshape(slice(up, 0, n - 1, n), {}), dtype);
}
ValueId Emitter::size_like(ValueId v, const c10::SymInt& n) {
    if (auto constant = n.maybe_as_int()) return number(v, static_cast<double>(*constant));
    return expand(size_value(dtype(v), n), sizes(v));
}
ValueId Emitter::full_like(ValueId v, DType dtype, double value) {
    Scalar s = is_complex(dtype)      ? Scalar(std::complex<double>(value))
               : is_float(dtype)      ? Scalar(value)
               : dtype == DType::Bool ? Scalar(value != 0)
                                      : Scalar(static_cast<std::int64_t>(value));
    return op(Prim::Full, {}, {{"dtype", dtype}, {"sizes", type(v).sizes}, {"value", s}});
}
ValueId Emitter::expand(ValueId v, const SymInts& to) {
    SymInts from = sizes(v);
    if (same(from, to)) return v;
    if (from.size() > to.size()) throw UserError("a tensor cannot be expanded to fewer dims");
    Ints dims(from.size());
    std::iota(dims.begin(), dims.end(), static_cast<std::int64_t>(to.size() - from.size()));
    for (std::size_t i = 0; i < from.size(); ++i)
        if (from[i] != to[to.size() - from.size() + i] && from[i] != 1)
            throw UserError("sizes do not match in a broadcast");
    return op(Prim::Broadcast, {v}, {{"sizes", to_sizes(to)}, {"dims", dims}});
}
ValueId Emitter::reshape(ValueId v, const SymInts& to) {
    return same(sizes(v), to) ? v : op(Prim::Reshape, {v}, {{"sizes", to_sizes(to)}});
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
ValueId Emitter::slice(ValueId v, std::int64_t dim, const c10::SymInt& start,
                       const c10::SymInt& end, std::int64_t step) {
    check_dim(dim, rank(v));
    SymInts starts(static_cast<std::size_t>(rank(v)), 0), ends = sizes(v);
    Ints steps(starts.size(), 1);
    auto d = static_cast<std::size_t>(dim);
    if (same(start, 0) && same(end, ends[d]) && step == 1) return v;
    starts[d] = start;
    ends[d] = end;
    steps[d] = step;
    return op(Prim::Slice, {v},
              {{"starts", to_sizes(starts)}, {"ends", to_sizes(ends)}, {"steps", steps}});
}
ValueId Emitter::select(ValueId v, std::int64_t dim, const c10::SymInt& index) {
    SymInts to = sizes(v);
    to.erase(to.begin() + dim);
    return reshape(slice(v, dim, index, index + 1), to);
}
ValueId Emitter::unsqueeze(ValueId v, std::int64_t dim) {
    SymInts to = sizes(v);
    check_dim(dim, rank(v) + 1);
    to.insert(to.begin() + dim, 1);
    return reshape(v, to);
}
ValueId Emitter::pad(ValueId v, const SymInts& low, const SymInts& high, const Scalar& value) {
    auto zero = [](const c10::SymInt& x) { return same(x, 0); };
    if (std::all_of(low.begin(), low.end(), zero) && std::all_of(high.begin(), high.end(), zero))
        return v;
    return op(Prim::Pad, {v}, {{"low", to_sizes(low)}, {"high", to_sizes(high)}, {"value", value}});
}
ValueId Emitter::iota(DType dtype, const SymInts& sizes, std::int64_t dim, const Scalar& start,
                      const Scalar& step) {
    return op(Prim::Iota, {},
              {{"dtype", dtype},
               {"sizes", to_sizes(sizes)},
               {"dim", dim},
               {"start", start},
               {"step", step}});
}
ValueId Emitter::reduce(Prim prim, ValueId v, const Ints& dims, bool keep, Attrs more) {
    SymInts to = sizes(v);
    Ints sorted = dims;
    std::sort(sorted.begin(), sorted.end());
    Attrs attrs{{"dims", sorted}};
    for (const Attr& a : more.list()) attrs.set(a.key, a.value);
    ValueId out = op(prim, {v}, std::move(attrs));
    if (!keep) return out;
    for (std::int64_t d : sorted) to[static_cast<std::size_t>(d)] = 1;
    return reshape(out, to);
}
ValueId Emitter::spread(ValueId reduced, const Ints& dims, const SymInts& to) {
    Ints kept;
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(to.size()); ++d)
        if (std::find(dims.begin(), dims.end(), d) == dims.end()) kept.push_back(d);
    if (kept.size() == to.size()) return reduced;
    return op(Prim::Broadcast, {reduced}, {{"sizes", to_sizes(to)}, {"dims", kept}});
}

c10::SymInt numel(const SymInts& sizes) {
    c10::SymInt n = 1;
    for (const c10::SymInt& s : sizes) n *= s;
    return n;
}
SymInts contiguous(const SymInts& sizes) {
    SymInts strides(sizes.size());
    c10::SymInt next = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
        strides[i] = next;
        next *= sizes[i].max(1);
    }
    return strides;
}
SymInts format_strides(const SymInts& sizes, c10::MemoryFormat format) {
    const c10::SymIntArrayRef s(sizes);
    if (format == c10::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(s);
    if (format == c10::MemoryFormat::ChannelsLast3d) return c10::get_channels_last_strides_3d(s);
    return contiguous(sizes);
}

bool is_contiguous(const Layout& l, c10::MemoryFormat format) {
    if (format == c10::MemoryFormat::Contiguous) {
        c10::SymInt next = 1;
        for (std::size_t i = l.sizes.size(); i-- > 0;) {
            if (l.sizes[i] == 0) return true;
            if (l.sizes[i] != 1 && l.strides[i] != next) return false;
            next *= l.sizes[i];
        }
        return true;
    }
    std::size_t rank = format == c10::MemoryFormat::ChannelsLast ? 4 : 5;
    if (l.sizes.size() != rank) return false;
    c10::SymInt next = 1;
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
    auto at = [](const SymInts& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
    if (order.size() == 1) return l.sizes[0] < 2 || l.strides[0] == 1;
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        if (at(l.sizes, a) < 2) return false;
        if (at(l.sizes, b) < 2) return true;
        return at(l.strides, a) < at(l.strides, b);
    });
    c10::SymInt next = 1;
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
                   ? c10::is_channels_last_strides_2d<c10::SymInt>(l.sizes, l.strides)
                   : c10::is_channels_last_strides_3d<c10::SymInt>(l.sizes, l.strides);
    };
    if (l.sizes.size() == 4 && is_strides_like(c10::MemoryFormat::ChannelsLast))
        return c10::MemoryFormat::ChannelsLast;
    if (l.sizes.size() == 5 && is_strides_like(c10::MemoryFormat::ChannelsLast3d))
        return c10::MemoryFormat::ChannelsLast3d;
    return c10::MemoryFormat::Contiguous;
}

namespace {

/// TensorIterator::reorder_dimensions: which of two dims is the outer one, asked of all operands.
int order_of(std::size_t dim0, std::size_t dim1, const SymInts& shape,
             const std::vector<SymInts>& strides) {
    for (const SymInts& s : strides) {
        const c10::SymInt &a = s[dim0], &b = s[dim1];
        if (a == 0 || b == 0) continue;
        if (a < b) return -1;
        if (a > b) return 1;
        if (shape[dim0] > shape[dim1]) return 1;
    }
    return 0;
}

}  // namespace

SymInts iterator_strides(const SymInts& shape, std::span<const Layout> operands) {
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
    std::vector<SymInts> strides;
    for (const Layout& l : operands) {
        SymInts s(n, 0);
        std::size_t offset = n - l.sizes.size();
        for (std::size_t i = 0; i < l.sizes.size(); ++i)
            s[offset + i] =
                l.sizes[i] == 1 && shape[offset + i] != 1 ? c10::SymInt(0) : l.strides[i];
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
    SymInts out(n);
    c10::SymInt next = 1;
    for (std::size_t d : perm) {
        out[d] = next;
        next *= shape[d];
    }
    return out;
}

SymInts preserved_strides(const Layout& l) {
    if (is_dense(l)) return l.strides;
    // infer_dense_strides orders like TensorIterator with one operand.
    std::size_t n = l.sizes.size();
    std::vector<SymInts> strides{l.strides};
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
    SymInts out(n);
    c10::SymInt next = 1;
    for (std::size_t d : perm) {
        out[d] = next;
        if (l.sizes[d] > 1) next *= l.sizes[d];
    }
    return out;
}

SymInts broadcast_sizes(const SymInts& a, const SymInts& b) {
    std::size_t n = std::max(a.size(), b.size());
    SymInts out(n);
    for (std::size_t i = n; i-- > 0;) {
        const c10::SymInt x = i < n - a.size() ? c10::SymInt(1) : a[i - (n - a.size())];
        const c10::SymInt y = i < n - b.size() ? c10::SymInt(1) : b[i - (n - b.size())];
        if (x != 1 && y != 1 && x != y) {
            const auto text = [](const c10::SymInt& s) {
                return std::to_string(s.guard_int(__FILE__, __LINE__));
            };
            throw UserError("The size of tensor a (" + text(x) +
                            ") must match the size of tensor b (" + text(y) +
                            ") at non-singleton dimension " + std::to_string(i));
        }
        out[i] = x == 1 ? y : x;
    }
    return out;
}

}  // namespace ingot::trace
