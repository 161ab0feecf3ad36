// Shape rules of movement and indexing prims; see shape_rules.h.
#include "ir/shape_rules.h"

namespace ingot::shape {

namespace {

std::vector<Type> permute(const Rule& r) {
    r.dim_set("dims", r.rank(0));
    r.require(static_cast<int>(r.ints("dims").size()) == r.rank(0), "dims is no permutation");
    Sizes sizes;
    for (std::int64_t d : r.ints("dims")) sizes.push_back(r.sizes(0)[static_cast<std::size_t>(d)]);
    return r.same(std::move(sizes));
}

std::vector<Type> broadcast(const Rule& r) {
    const Sizes& sizes = r.size_list("sizes");
    const Ints& dims = r.ints("dims");
    r.dim_set("dims", static_cast<int>(sizes.size()));
    r.require(static_cast<int>(dims.size()) == r.rank(0), "dims needs one entry an operand dim");
    for (std::size_t i = 0; i < dims.size(); ++i)
        if (!r.sizes(0)[i].is(1))
            r.require_equal(r.sizes(0)[i], sizes[static_cast<std::size_t>(dims[i])],
                            "only a size of 1 is repeated");
    return r.same(sizes);
}

std::vector<Type> slice(const Rule& r) {
    const Sizes &starts = r.size_list("starts"), &ends = r.size_list("ends");
    const Ints& steps = r.ints("steps");
    auto rank = static_cast<std::size_t>(r.rank(0));
    r.require(starts.size() == rank && ends.size() == rank && steps.size() == rank,
              "starts, ends and steps need one entry a dim");
    Sizes sizes;
    for (std::size_t i = 0; i < rank; ++i) {
        r.require(steps[i] > 0, "steps must be positive");
        r.require(known_le(0, starts[i]) != false, "a start is negative");
        r.require(known_le(starts[i], ends[i]) != false, "a start is past its end");
        r.require(known_le(ends[i], r.sizes(0)[i]) != false, "an end is past the size");
        sizes.push_back(ceil_div(ends[i] - starts[i], steps[i]));
    }
    return r.same(std::move(sizes));
}

std::vector<Type> pad(const Rule& r) {
    const Sizes &low = r.size_list("low"), &high = r.size_list("high");
    auto rank = static_cast<std::size_t>(r.rank(0));
    r.require(low.size() == rank && high.size() == rank, "low and high need one entry a dim");
    Sizes sizes;
    for (std::size_t i = 0; i < rank; ++i) {
        sizes.push_back(r.sizes(0)[i] + low[i] + high[i]);
        r.require(known_le(0, sizes[i]) != false, "cropped below nothing");
    }
    return r.same(std::move(sizes));
}

std::vector<Type> concat(const Rule& r) {
    r.require(!r.operands.empty(), "needs an operand");
    std::size_t dim = r.dim("dim", r.rank(0));
    Sizes sizes = r.sizes(0);
    for (std::size_t k = 1; k < r.operands.size(); ++k) {
        r.require_same_dtype(0, k);
        r.require(r.rank(k) == r.rank(0), "operands of different ranks");
        for (std::size_t i = 0; i < sizes.size(); ++i)
            if (i != dim) r.require_equal(sizes[i], r.sizes(k)[i], "operands of different sizes");
        sizes[dim] += r.sizes(k)[dim];
    }
    return r.same(std::move(sizes));
}

std::vector<Type> window(const Rule& r) {
    const Ints &dims = r.ints("dims"), &steps = r.ints("steps"), &dilations = r.ints("dilations");
    const Sizes& inside = r.size_list("sizes");
    r.dim_set("dims", r.rank(0));
    r.require(inside.size() == dims.size() && steps.size() == dims.size() &&
                  dilations.size() == dims.size(),
              "sizes, steps and dilations need one entry a dim of dims");
    Sizes sizes = r.sizes(0);
    for (std::size_t i = 0; i < dims.size(); ++i) {
        r.require(steps[i] > 0 && dilations[i] > 0, "steps and dilations must be positive");
        Expr& size = sizes[static_cast<std::size_t>(dims[i])];
        Expr last = Expr(dilations[i]) * (inside[i] - Expr(1));
        size = floor_div(size - last - Expr(1), steps[i]) + Expr(1);
        r.require(known_le(0, size) != false, "a window is larger than its dim");
    }
    sizes.insert(sizes.end(), inside.begin(), inside.end());
    return r.same(std::move(sizes));
}

// The operand's sizes without the two dims, and the diagonal's length last.
Sizes diagonal_sizes(const Rule& r) {
    std::size_t d1 = r.dim("dim1", r.rank(0)), d2 = r.dim("dim2", r.rank(0));
    r.require(d1 != d2, "needs two different dims");
    auto offset = r.attr<std::int64_t>("offset");
    Expr rows = r.sizes(0)[d1], columns = r.sizes(0)[d2];
    if (offset >= 0)
        columns = columns - Expr(offset);
    else
        rows = rows + Expr(offset);
    Sizes sizes;
    for (std::size_t i = 0; i < r.sizes(0).size(); ++i)
        if (i != d1 && i != d2) sizes.push_back(r.sizes(0)[i]);
    sizes.push_back(max(min(rows, columns), 0));
    return sizes;
}

std::vector<Type> update(const Rule& r) {
    r.require_same_dtype(0, 1);
    auto rank = static_cast<std::size_t>(r.rank(0));
    switch (r.prim) {
        case Prim::Update: {
            const Sizes& starts = r.size_list("starts");
            const Ints& steps = r.ints("steps");
            r.require(starts.size() == rank && steps.size() == rank && r.sizes(1).size() == rank,
                      "starts, steps and the box need one entry a dim");
            for (std::size_t i = 0; i < rank; ++i) {
                r.require(steps[i] > 0, "steps must be positive");
                Expr last = starts[i] + (r.sizes(1)[i] - Expr(1)) * Expr(steps[i]);
                if (known_lt(0, r.sizes(1)[i]) == true)
                    r.require(known_lt(last, r.sizes(0)[i]) != false, "the box sticks out");
            }
            break;
        }
        case Prim::UpdateDiagonal:
            r.require_equal(r.sizes(1), diagonal_sizes(r), "the diagonal has other sizes");
            break;
        default:
            r.require(r.size_list("strides").size() == r.sizes(1).size(),
                      "strides needs one entry a dim of operand 1");
            r.attr<Expr>("offset");
    }
    return r.same(r.sizes(0));
}

}  // namespace

std::vector<Type> movement(const Rule& r) {
    switch (r.prim) {
        case Prim::Permute:
            return permute(r);
        case Prim::Broadcast:
            return broadcast(r);
        case Prim::Reshape:
            r.require_equal(product(r.size_list("sizes")), r.operand(0).numel(),
                            "another number of elements");
            return r.same(r.size_list("sizes"));
        case Prim::Slice:
            return slice(r);
        case Prim::Pad:
            return pad(r);
        case Prim::Concat:
            return concat(r);
        case Prim::Window:
            return window(r);
        case Prim::Diagonal:
            return r.same(diagonal_sizes(r));
        case Prim::AsStrided:
            r.require(r.size_list("sizes").size() == r.size_list("strides").size(),
                      "sizes and strides of different ranks");
            r.attr<Expr>("offset");
            return r.same(r.size_list("sizes"));
        case Prim::Update:
        case Prim::UpdateDiagonal:
        case Prim::UpdateStrided:
            return update(r);
        default:
            r.fail("no shape rule");
    }
}

namespace {

// Sizes of operand 0 indexed at the increasing `dims` by operands first.. : the index sizes stand
// where the first of the dims stood.
Sizes taken_sizes(const Rule& r, std::size_t first) {
    const Ints& dims = r.ints("dims");
    std::vector<bool> indexed = r.dim_set("dims", r.rank(0));
    r.require(!dims.empty() && r.operands.size() == first + dims.size(),
              "needs one index operand a dim");
    for (std::size_t i = 0; i < dims.size(); ++i) {
        r.require_index(first + i);
        r.require_equal(r.sizes(first + i), r.sizes(first), "indices of different sizes");
        if (i > 0) r.require(dims[i] > dims[i - 1], "dims must increase");
    }
    Sizes sizes;
    for (std::size_t i = 0; i < indexed.size(); ++i) {
        if (!indexed[i]) sizes.push_back(r.sizes(0)[i]);
        if (static_cast<std::int64_t>(i) == dims[0])
            sizes.insert(sizes.end(), r.sizes(first).begin(), r.sizes(first).end());
    }
    return sizes;
}

// gather, scatter: an index of operand 0's rank, no larger than operand 0 but along dim.
void check_index_along_dim(const Rule& r) {
    r.require_index(1);
    r.require(r.rank(0) == r.rank(1), "the index needs operand 0's rank");
    if (r.rank(0) == 0) return;
    std::size_t dim = r.dim("dim", r.rank(0));
    for (std::size_t i = 0; i < r.sizes(0).size(); ++i)
        if (i != dim)
            r.require(known_le(r.sizes(1)[i], r.sizes(0)[i]) != false,
                      "the index is larger than operand 0");
}

std::vector<Type> embedding_bag(const Rule& r) {
    r.require(r.rank(0) == 2 && r.rank(1) == 1 && r.rank(2) == 1,
              "needs a matrix, indices and offsets");
    r.require_index(1);
    r.require_index(2);
    const auto& mode = r.attr<std::string>("mode");
    r.require(mode == "sum" || mode == "mean" || mode == "max", "unknown mode");
    return r.same({r.sizes(2)[0], r.sizes(0)[1]});
}

}  // namespace

std::vector<Type> indexing(const Rule& r) {
    switch (r.prim) {
        case Prim::Gather:
            check_index_along_dim(r);
            return r.same(r.sizes(1));
        case Prim::Scatter:
        case Prim::ScatterReduce:
            check_index_along_dim(r);
            r.require_same_dtype(0, 2);
            r.require_equal(r.sizes(1), r.sizes(2), "index and source of different sizes");
            return r.same(r.sizes(0));
        case Prim::Take:
            r.require(r.operands.size() >= 2, "needs an operand and an index");
            return r.same(taken_sizes(r, 1));
        case Prim::Put:
            r.require(r.operands.size() >= 3, "needs an operand, values and an index");
            r.require_same_dtype(0, 1);
            r.require_equal(taken_sizes(r, 2), r.sizes(1), "values of other sizes");
            return r.same(r.sizes(0));
        case Prim::MaskedScatter:
            r.require(r.operand(1).dtype == DType::Bool, "the mask must be a bool");
            r.require_equal(r.sizes(0), r.sizes(1), "a mask of other sizes");
            r.require_same_dtype(0, 2);
            return r.same(r.sizes(0));
        case Prim::Searchsorted: {
            r.require_same_dtype(0, 1);
            r.require(r.rank(0) == 1 || (r.rank(0) > 1 && r.rank(0) == r.rank(1)),
                      "the sequence needs one dim, or the values' rank");
            for (int i = 0; i + 1 < r.rank(0); ++i)
                r.require_equal(r.sizes(0)[i], r.sizes(1)[i], "batches of different sizes");
            DType t = r.attr<DType>("dtype");
            r.require(t == DType::I64 || t == DType::I32, "positions are i64 or i32");
            return {r.make(t, r.sizes(1))};
        }
        case Prim::Nonzero:
            return {r.make(DType::I64, {r.attr<Expr>("count"), r.rank(0)})};
        case Prim::Bincount:
            r.require_index(0);
            r.require(r.rank(0) == 1, "needs one dim");
            return {r.make(DType::I64, {r.attr<Expr>("count")})};
        case Prim::EmbeddingBag:
            return embedding_bag(r);
        default:
            r.fail("no shape rule");
    }
}

}  // namespace ingot::shape
