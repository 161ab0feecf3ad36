// See row_distances.h.
#include "schedule/row_distances.h"

#include <vector>

#include "schedule/convert.h"
#include "schedule/reduction_stages.h"

namespace ingot::sched {

namespace {

// The first element of every row that `dims` make up.
ValueId first_of(Graph& g, ValueId x, const Ints& dims) {
    const Sizes sizes = g.type(x).sizes;
    Sizes starts(sizes.size(), Expr(0)), ends = sizes, kept;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (reduced(dims, i))
            ends[i] = 1;
        else
            kept.push_back(sizes[i]);
    }
    const ValueId first = g.emit(
        Prim::Slice, {x}, {{"starts", starts}, {"ends", ends}, {"steps", Ints(sizes.size(), 1)}});
    return g.emit(Prim::Reshape, {first}, {{"sizes", kept}});
}

bool is_widened(const Graph& g, ValueId x) {
    const Node* made = g.producer(x);
    return made != nullptr && made->prim == Prim::Convert &&
           is_reduced_float(g.type(made->operands[0]).dtype);
}

// Of what has been widened from 16 bits: its first elements are near enough to the means that sums
// relative to them lose no digit that counts there.
std::optional<Shifted> shifted(Graph& g, Sums& sums, ValueId x, const Ints& dims) {
    if (!is_widened(g, x)) return std::nullopt;
    const ValueId narrow = g.producer(x)->operands[0];
    auto [it, fresh] = sums.shifted.try_emplace({x, dims});
    if (fresh) {
        const Type type = g.type(x);
        it->second.first = convert(g, first_of(g, narrow, dims), type.dtype);
        const ValueId spread = broadcast_back(g, it->second.first, type.sizes, dims);
        it->second.away = g.emit(Prim::Sub, {x, spread});
    }
    return it->second;
}

// Rows one behind the other in memory, whose first elements can be read whenever they are asked
// for: nothing is computed for them.
bool are_stored_rows(const Graph& g, ValueId x, const Ints& dims) {
    const std::size_t rank = g.type(x).sizes.size();
    for (std::size_t i = 0; i < rank; ++i)
        if (reduced(dims, i) != (i + dims.size() >= rank)) return false;
    const Node* n = g.producer(x);
    while (n != nullptr && (n->prim == Prim::Convert || n->prim == Prim::Reshape))
        n = g.producer(n->operands[0]);
    return n == nullptr || kind(n->prim) == PrimKind::Contraction;
}

// The squares of the distances from the mean, summed. Where the sums are made of partial ones, or
// other sums over the row are of `one_pass`, and x has been rounded to 16 bits, x is read once, for
// the mean too: what is squared is the distance from the first element, so that a mean far from
// zero takes no digits away.
ValueId sum_of_squares(Graph& g, Sums& sums, ValueId x, ValueId sum, ValueId count,
                       const Ints& dims, bool gpu, bool one_pass) {
    const Sizes sizes = g.type(x).sizes;
    if (const auto from_first = gpu ? shifted(g, sums, x, dims) : std::nullopt) {
        const auto [first, away] = *from_first;
        const ValueId square = g.emit(Prim::Mul, {away, away});
        std::optional<ValueId> squares = over_columns(g, Prim::Sum, square, dims);
        if (!squares && one_pass) squares = sum_over(g, sums, square, dims, gpu);
        if (squares) {
            const ValueId shift = g.emit(Prim::Sub, {sum, g.emit(Prim::Mul, {first, count})});
            const ValueId excess = g.emit(Prim::Div, {g.emit(Prim::Mul, {shift, shift}), count});
            const ValueId rest = g.emit(Prim::Sub, {*squares, excess});
            return g.emit(Prim::Maximum, {rest, full_like(g, rest, 0.0)});
        }
    }
    const ValueId mean = g.emit(Prim::Div, {sum, count});
    const ValueId away = g.emit(Prim::Sub, {x, broadcast_back(g, mean, sizes, dims)});
    const ValueId squares = sum_over(g, sums, g.emit(Prim::Mul, {away, away}), dims, gpu);
    if (gpu) return squares;
    // What the mean's rounding has left in the distances, so that equal elements have none: the
    // corrected two-pass algorithm (Chan, Golub, LeVeque 1983), in the same loop.
    ValueId rest = sum_over(g, sums, away, dims, gpu);
    rest = g.emit(Prim::Div, {g.emit(Prim::Mul, {rest, rest}), count});
    rest = g.emit(Prim::Sub, {squares, rest});
    return g.emit(Prim::Maximum, {rest, full_like(g, rest, 0.0)});
}

// Products of values of rows, one of them a distance from a number that the row has: sum of
// a (x - m) r, with m and r one for each row, is r (sum of a (x - f) - (m - f) sum of a) for any f.
// Where m follows from a sum over the row itself, all sums are of one pass then, not of two that
// wait for each other. With the row's first element as f nothing cancels that 16 bits would show.
class DistanceProduct {
  public:
    DistanceProduct(const Graph& g, const Ints& dims) : g_(g), dims_(dims) {}

    ValueId x = kNone, mean = kNone;
    std::vector<ValueId> own, of_rows;  // the other factors: a and r

    bool find(ValueId product) {
        return g_.type(product).dtype == DType::F32 && descend(product, 0) && !own.empty() &&
               is_widened(g_, x) && are_stored_rows(g_, x, dims_);
    }

  private:
    // Down the product to the difference; the factors beside the way are kept as they are.
    bool descend(ValueId v, int depth) {
        const Node* n = g_.producer(v);
        if (n == nullptr) return false;
        if (n->prim == Prim::Sub && is_number(n->operands[1]) && follows_from_sum(n->operands[1])) {
            x = n->operands[0];
            mean = n->operands[1];
            return true;
        }
        if (n->prim != Prim::Mul || depth == kDeep) return false;
        for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
            if (!descend(n->operands[k], depth + 1)) continue;
            const ValueId other = n->operands[1 - k];
            (is_number(other) ? of_rows : own).push_back(other);
            return true;
        }
        return false;
    }

    // Whether v is one number for each row, repeated along it.
    bool is_number(ValueId v) const {
        const Node* n = g_.producer(v);
        if (n == nullptr || n->prim != Prim::Broadcast) return false;
        const Sizes& from = g_.type(n->operands[0]).sizes;
        const Ints to = n->attrs.get<Ints>("dims");
        Ints kept, others;
        for (std::size_t i = 0; i < to.size(); ++i) {
            if (!reduced(dims_, static_cast<std::size_t>(to[i])))
                kept.push_back(to[i]);
            else if (!from[i].is(1))
                return false;
        }
        for (std::size_t i = 0; i < g_.type(v).sizes.size(); ++i)
            if (!reduced(dims_, i)) others.push_back(static_cast<std::int64_t>(i));
        return kept == others;
    }

    bool follows_from_sum(ValueId v) const {
        std::vector<ValueId> work{g_.producer(v)->operands[0]};
        const Expr rows = g_.type(work[0]).numel();
        for (std::size_t k = 0; k < work.size() && k < kMostSeen; ++k) {
            const Node* n = g_.producer(work[k]);
            if (n == nullptr) continue;
            if (n->prim == Prim::Sum) return true;
            if (!is_pointwise(n->prim) && n->prim != Prim::Reshape) continue;
            for (const ValueId o : n->operands)
                if (g_.type(o).numel() == rows) work.push_back(o);
        }
        return false;
    }

    static constexpr int kDeep = 4;
    static constexpr std::size_t kMostSeen = 16;
    const Graph& g_;
    const Ints& dims_;
};

}  // namespace

ValueId sum_over(Graph& g, Sums& sums, ValueId x, const Ints& dims, bool gpu) {
    auto [it, fresh] = sums.all.try_emplace({x, dims}, kNone);
    if (!fresh) return it->second;
    std::optional<ValueId> staged;
    if (gpu) staged = sums.split->reduce_columns(g, Prim::Sum, x, dims);
    it->second = staged ? *staged : g.emit(Prim::Sum, {x}, {{"dims", dims}});
    return it->second;
}

std::optional<ValueId> sum_of_distances(Graph& g, Sums& sums, ValueId product, const Ints& dims) {
    DistanceProduct p(g, dims);
    if (!p.find(product)) return std::nullopt;
    const auto from_first = shifted(g, sums, p.x, dims);
    if (!from_first) return std::nullopt;
    // The numbers that a row has, without the reduced dims.
    const auto number = [&](ValueId v) {
        const ValueId from = g.producer(v)->operands[0];
        const Sizes sizes = g.type(v).sizes;
        Sizes kept;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            if (!reduced(dims, i)) kept.push_back(sizes[i]);
        if (g.type(from).sizes == kept) return from;
        return g.emit(Prim::Reshape, {from}, {{"sizes", kept}});
    };
    ValueId a = p.own[0];
    for (std::size_t k = 1; k < p.own.size(); ++k) a = g.emit(Prim::Mul, {a, p.own[k]});
    const ValueId relative =
        sum_over(g, sums, g.emit(Prim::Mul, {a, from_first->away}), dims, true);
    const ValueId whole = sum_over(g, sums, a, dims, true);
    const ValueId shift = g.emit(Prim::Sub, {number(p.mean), from_first->first});
    ValueId result = g.emit(Prim::Sub, {relative, g.emit(Prim::Mul, {shift, whole})});
    for (const ValueId r : p.of_rows) result = g.emit(Prim::Mul, {result, number(r)});
    return result;
}

RowsOfDistances rows_of_distances(const Graph& g) {
    RowsOfDistances found;
    for (const Node& n : g.nodes()) {
        if (n.prim != Prim::Sum) continue;
        const Ints dims = n.attrs.get<Ints>("dims");
        DistanceProduct p(g, dims);
        if (p.find(n.operands[0])) found.insert({p.x, dims});
    }
    return found;
}

ValueId variance(Graph& g, Sums& sums, const Node& n, ValueId operand, bool gpu, bool one_pass) {
    const Ints dims = n.attrs.get<Ints>("dims");
    DType dtype = g.type(operand).dtype;
    ValueId x = convert(g, operand, compute_type(dtype));
    const Sizes sizes = g.type(x).sizes;
    Expr count = 1;
    for (std::int64_t d : dims) count *= sizes[static_cast<std::size_t>(d)];
    std::optional<ValueId> sum, squares;
    if (gpu) sum = sums.split->reduce(g, Prim::Sum, x, dims, n.operands[0], n.results[0]);
    const bool in_pieces = sum.has_value();
    if (!sum) sum = sum_over(g, sums, x, dims, gpu);
    const ValueId size = size_like(g, *sum, count);
    // What has 16 bits is read once by sums relative to its first elements, too.
    if (gpu && (in_pieces || !is_widened(g, x)))
        squares = sums.split->squares(g, x, dims, g.emit(Prim::Div, {*sum, size}));
    if (!squares) squares = sum_of_squares(g, sums, x, *sum, size, dims, gpu, one_pass);
    ValueId divisor = g.emit(
        Prim::Sub,
        {size_like(g, *squares, count), full_like(g, *squares, n.attrs.get<double>("correction"))});
    divisor = g.emit(Prim::Maximum, {divisor, full_like(g, *squares, 0.0)});
    return convert(g, g.emit(Prim::Div, {*squares, divisor}), dtype);
}

}  // namespace ingot::sched
