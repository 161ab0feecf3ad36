// Shape rules of sorting, random, complex, Fourier, linear algebra, stencil and effect prims; see
// shape_rules.h.
#include "ir/shape_rules.h"

namespace ingot::shape {

namespace {

std::vector<Type> with_index(const Rule& r, Sizes sizes) {
    return {r.make(r.operand(0).dtype, sizes), r.make(DType::I64, sizes)};
}

Sizes without_dim(const Rule& r) {
    Sizes sizes = r.sizes(0);
    if (!sizes.empty())
        sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(r.dim("dim", r.rank(0))));
    return sizes;
}

std::vector<Type> sorting(const Rule& r) {
    if (r.prim != Prim::Topk) return with_index(r, without_dim(r));
    Sizes sizes = r.sizes(0);
    Expr k = r.attr<Expr>("k");
    if (!sizes.empty()) {
        std::size_t dim = r.dim("dim", r.rank(0));
        r.require(known_le(k, sizes[dim]) != false, "k is larger than the dim");
        sizes[dim] = k;
    }
    return with_index(r, std::move(sizes));
}

DType complex_type(const Rule& r) {
    DType t = r.operand(0).dtype;
    r.require(t == DType::F32 || t == DType::F64, "needs f32 or f64");
    return t == DType::F32 ? DType::C64 : DType::C128;
}

std::vector<Type> complex_view(const Rule& r) {
    Sizes sizes = r.sizes(0);
    if (r.prim == Prim::ViewAsReal) {
        r.require(is_complex(r.operand(0).dtype), "needs a complex operand");
        sizes.push_back(2);
        return {r.make(real_type(r.operand(0).dtype), std::move(sizes))};
    }
    if (r.prim == Prim::ViewAsComplex) {
        r.require(!sizes.empty(), "needs a last dim of 2");
        r.require_equal(sizes.back(), 2, "the last dim must be 2");
        sizes.pop_back();
        return {r.make(complex_type(r), std::move(sizes))};
    }
    DType to = r.attr<DType>("dtype");
    int from_bytes = bytes(r.operand(0).dtype), to_bytes = bytes(to);
    if (from_bytes != to_bytes) r.require(!sizes.empty(), "needs a last dim");
    if (from_bytes > to_bytes) sizes.back() *= Expr(from_bytes / to_bytes);
    if (from_bytes < to_bytes) {
        r.require_equal(mod(sizes.back(), to_bytes / from_bytes), 0, "the last dim does not fit");
        sizes.back() = floor_div(sizes.back(), to_bytes / from_bytes);
    }
    return {r.make(to, std::move(sizes))};
}

std::vector<Type> linalg(const Rule& r) {
    Sizes sizes = r.sizes(0);
    switch (r.prim) {
        case Prim::FftR2C:
        case Prim::FftC2R: {
            r.dim_set("dims", r.rank(0));
            r.require(!r.ints("dims").empty(), "needs a dim");
            Expr& last = sizes[static_cast<std::size_t>(r.ints("dims").back())];
            if (r.prim == Prim::FftC2R) {
                r.require(is_complex(r.operand(0).dtype), "needs a complex operand");
                last = r.attr<Expr>("last");
                return {r.make(real_type(r.operand(0).dtype), std::move(sizes))};
            }
            if (r.attr<bool>("onesided")) last = floor_div(last, 2) + Expr(1);
            return {r.make(complex_type(r), std::move(sizes))};
        }
        case Prim::TriangularSolve:
            r.require_same_dtype(0, 1);
            r.require(r.rank(0) >= 2 && r.rank(0) == r.rank(1), "needs matrices of equal rank");
            return r.same(r.sizes(1));
        default:
            r.require(r.rank(0) >= 2, "needs matrices");
            sizes.resize(sizes.size() - 2);
            return r.same(std::move(sizes));
    }
}

// PyTorch's pooling_output_shape: in ceil mode the last window must start inside the input or its
// left padding.
Expr pooled_size(const Rule& r, Expr in, std::size_t i) {
    std::int64_t k = r.ints("kernel")[i], s = r.ints("stride")[i], p = r.ints("padding")[i],
                 d = r.ints("dilation")[i];
    bool ceil = r.attr<bool>("ceil");
    r.require(k > 0 && s > 0 && d > 0 && p >= 0, "kernel, stride and dilation must be positive");
    Expr room = in + Expr(2 * p - d * (k - 1) - 1 + (ceil ? s - 1 : 0));
    Expr out = floor_div(room, s) + Expr(1);
    if (!ceil) return out;
    auto starts_inside = known_lt((out - Expr(1)) * Expr(s), in + Expr(p));
    if (!starts_inside) throw NotSupported("ceil-mode pooling of a symbolic size");
    return *starts_inside ? out : out - Expr(1);
}

std::vector<Type> stencil(const Rule& r) {
    switch (r.prim) {
        case Prim::MaxPoolIndices: {
            std::size_t spatial = r.ints("kernel").size();
            r.require(r.ints("stride").size() == spatial && r.ints("padding").size() == spatial &&
                          r.ints("dilation").size() == spatial,
                      "kernel, stride, padding and dilation of different lengths");
            r.require(r.sizes(0).size() > spatial, "needs a channel dim and the spatial dims");
            Sizes sizes = r.sizes(0);
            std::size_t first = sizes.size() - spatial;
            for (std::size_t i = 0; i < spatial; ++i)
                sizes[first + i] = pooled_size(r, sizes[first + i], i);
            return with_index(r, std::move(sizes));
        }
        case Prim::MaxPoolGrad:
            r.require_index(1);
            r.require_equal(r.sizes(0), r.sizes(1), "gradients and indices of different sizes");
            [[fallthrough]];
        case Prim::Interpolate:
        case Prim::InterpolateGrad:
            r.require(r.size_list("sizes").size() == r.sizes(0).size(), "sizes of another rank");
            return r.same(r.size_list("sizes"));
        default: {  // GridSample
            r.require_same_dtype(0, 1);
            r.require((r.rank(0) == 4 || r.rank(0) == 5) && r.rank(0) == r.rank(1),
                      "needs two operands of four or five dims");
            r.require_equal(r.sizes(0)[0], r.sizes(1)[0], "batches differ");
            r.require_equal(r.sizes(1).back(), r.rank(0) - 2, "points have another dimension");
            Sizes sizes{r.sizes(0)[0], r.sizes(0)[1]};
            for (int i = 1; i + 1 < r.rank(1); ++i) sizes.push_back(r.sizes(1)[i]);
            return r.same(std::move(sizes));
        }
    }
}

std::vector<Type> effect(const Rule& r) {
    r.require(r.rank(0) > 0, "needs a first dim");
    auto count = r.attr<std::int64_t>("count");
    r.require(count > 0, "count must be positive");
    Sizes sizes = r.sizes(0);
    if (r.prim == Prim::AllGather)
        sizes[0] *= Expr(count);
    else
        sizes[0] = floor_div(sizes[0], count);
    return r.same(std::move(sizes));
}

}  // namespace

std::vector<Type> other(const Rule& r) {
    switch (kind(r.prim)) {
        case PrimKind::Sorting:
            return sorting(r);
        case PrimKind::Random: {  // Multinomial
            r.require(r.rank(0) == 1 || r.rank(0) == 2, "needs one or two dims");
            Sizes sizes = r.sizes(0);
            sizes.back() = r.attr<std::int64_t>("count");
            return {r.make(DType::I64, std::move(sizes))};
        }
        case PrimKind::Complex:
            return complex_view(r);
        case PrimKind::Linalg:
            return linalg(r);
        case PrimKind::Stencil:
            return stencil(r);
        case PrimKind::Effect:
            return effect(r);
        default:
            r.fail("no shape rule");
    }
}

}  // namespace ingot::shape
