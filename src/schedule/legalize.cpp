// See legalize.h.
#include "schedule/legalize.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "passes/facts.h"
#include "schedule/convert.h"
#include "schedule/legalize_convolution.h"
#include "schedule/legalize_windows.h"

namespace ingot::sched {

namespace {

using Limits = std::numeric_limits<double>;

ValueId full_like(Graph& g, ValueId like, Scalar value) {
    const Type t = g.type(like);
    return g.emit(Prim::Full, {}, {{"dtype", t.dtype}, {"sizes", t.sizes}, {"value", value}});
}

ValueId size_like(Graph& g, ValueId like, Expr size) {
    const Type t = g.type(like);
    if (size.is_constant()) {
        if (is_integral(t.dtype)) return full_like(g, like, Scalar(size.constant()));
        return full_like(g, like, Scalar(static_cast<double>(size.constant())));
    }
    return g.emit(Prim::SizeValue, {}, {{"dtype", t.dtype}, {"sizes", t.sizes}, {"size", size}});
}

bool reduced(const Ints& dims, std::size_t i) {
    return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(i)) != dims.end();
}

// `v`, whose sizes are `like`'s without `dims`, repeated along them.
ValueId broadcast_back(Graph& g, ValueId v, const Sizes& sizes, const Ints& dims) {
    Ints kept;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        if (!reduced(dims, i)) kept.push_back(static_cast<std::int64_t>(i));
    return g.emit(Prim::Broadcast, {v}, {{"sizes", sizes}, {"dims", kept}});
}

// Distances from each row's (or column's) first element.
struct Shifted {
    ValueId first = kNone;  // without the reduced dims
    ValueId away = kNone;
};

// Values and the dims that make up their rows.
using RowsOfDistances = std::set<std::pair<ValueId, Ints>>;

// Sums already there, so that a variance shares its mean's, and distances that several sums are of.
struct Sums {
    std::map<std::pair<ValueId, Ints>, ValueId> all;
    std::map<std::pair<ValueId, Ints>, Shifted> shifted;
};

std::optional<ValueId> over_columns(Graph& g, Prim prim, ValueId x, Ints dims);

ValueId sum_over(Graph& g, Sums& sums, ValueId x, const Ints& dims, bool gpu) {
    auto [it, fresh] = sums.all.try_emplace({x, dims}, kNone);
    if (!fresh) return it->second;
    std::optional<ValueId> staged;
    if (gpu) staged = over_columns(g, Prim::Sum, x, dims);
    it->second = staged ? *staged : g.emit(Prim::Sum, {x}, {{"dims", dims}});
    return it->second;
}

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

// Rows of which such sums are, by value and reduced dims.
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
    ValueId sum = sum_over(g, sums, x, dims, gpu);
    ValueId squares =
        sum_of_squares(g, sums, x, sum, size_like(g, sum, count), dims, gpu, one_pass);
    ValueId divisor = g.emit(Prim::Sub, {size_like(g, squares, count),
                                         full_like(g, squares, n.attrs.get<double>("correction"))});
    divisor = g.emit(Prim::Maximum, {divisor, full_like(g, squares, 0.0)});
    return convert(g, g.emit(Prim::Div, {squares, divisor}), dtype);
}

ValueId norm2(Graph& g, const Node& n, ValueId operand) {
    DType dtype = g.type(operand).dtype;
    ValueId x = convert(g, operand, compute_type(dtype));
    ValueId sum =
        g.emit(Prim::Sum, {g.emit(Prim::Mul, {x, x})}, {{"dims", n.attrs.get<Ints>("dims")}});
    return convert(g, g.emit(Prim::Sqrt, {sum}), dtype);
}

Scalar smallest(DType t) {
    if (is_float(t)) return Scalar(-Limits::infinity());
    if (!is_signed_int(t)) return Scalar(std::int64_t{0});
    int bits = 8 * bytes(t);
    return Scalar(bits == 64 ? std::numeric_limits<std::int64_t>::min()
                             : -(std::int64_t{1} << (bits - 1)));
}

struct Pool {
    Ints kernel, stride, padding, dilation;
    std::size_t first;  // spatial dim
};

// The windows of a max pooling, padded so that windows may stick out at the end (ceil mode).
ValueId pool_windows(Graph& g, const Pool& p, ValueId x, const Sizes& result) {
    const Sizes sizes = g.type(x).sizes;
    Sizes low(sizes.size(), Expr(0)), high(sizes.size(), Expr(0)), inside;
    Ints dims;
    bool pads = false;
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        std::size_t d = p.first + i;
        dims.push_back(static_cast<std::int64_t>(d));
        inside.push_back(p.kernel[i]);
        low[d] = p.padding[i];
        Expr needed =
            (result[d] - Expr(1)) * Expr(p.stride[i]) + Expr((p.kernel[i] - 1) * p.dilation[i] + 1);
        // A symbolic size leaves out windows that stick out: what is behind the last one may stay.
        high[d] = sizes[d].is_constant() ? needed - sizes[d] - low[d] : low[d];
        pads = pads || !low[d].is(0) || !high[d].is(0);
    }
    if (pads)
        x = g.emit(Prim::Pad, {x},
                   {{"low", low}, {"high", high}, {"value", smallest(g.type(x).dtype)}});
    return g.emit(
        Prim::Window, {x},
        {{"dims", dims}, {"sizes", inside}, {"steps", p.stride}, {"dilations", p.dilation}});
}

// Turns the position inside the window into a flat spatial index.
ValueId flat_index(Graph& g, const Pool& p, ValueId position, const Sizes& sizes) {
    const Sizes result = g.type(position).sizes;
    ValueId flat = full_like(g, position, Scalar(0));
    for (std::size_t i = 0; i < p.kernel.size(); ++i) {
        std::int64_t inner = 1;
        for (std::size_t j = i + 1; j < p.kernel.size(); ++j) inner *= p.kernel[j];
        ValueId k = g.emit(Prim::FloorDiv, {position, full_like(g, position, Scalar(inner))});
        k = g.emit(Prim::Remainder, {k, full_like(g, k, Scalar(p.kernel[i]))});
        k = g.emit(Prim::Mul, {k, full_like(g, k, Scalar(p.dilation[i]))});
        ValueId origin = g.emit(Prim::Iota, {},
                                {{"dtype", DType::I64},
                                 {"sizes", result},
                                 {"dim", static_cast<std::int64_t>(p.first + i)},
                                 {"start", Scalar(-p.padding[i])},
                                 {"step", Scalar(p.stride[i])}});
        flat = g.emit(Prim::Mul, {flat, size_like(g, flat, sizes[p.first + i])});
        flat = g.emit(Prim::Add, {flat, g.emit(Prim::Add, {origin, k})});
    }
    return flat;
}

void max_pool(Rewriter& r, const Graph& old, const Node& n, const std::vector<int>& uses) {
    Graph& g = r.out();
    ValueId x = r(n.operands[0]);
    const Sizes result = old.type(n.results[0]).sizes;
    Pool p{n.attrs.get<Ints>("kernel"), n.attrs.get<Ints>("stride"), n.attrs.get<Ints>("padding"),
           n.attrs.get<Ints>("dilation"), 0};
    p.first = result.size() - p.kernel.size();
    Ints dims;
    for (std::size_t i = 0; i < p.kernel.size(); ++i)
        dims.push_back(static_cast<std::int64_t>(result.size() + i));
    ValueId windows = pool_windows(g, p, x, result);
    r.map(n.results[0], g.emit(Prim::Amax, {windows}, {{"dims", dims}}));
    if (uses[n.results[1]] == 0) return;
    ValueId position = g.emit(Prim::Argmax, {windows}, {{"dims", dims}});
    r.map(n.results[1], flat_index(g, p, position, old.type(n.operands[0]).sizes));
}

// The largest divisor of n that is at most `limit`.
std::int64_t divisor_below(std::int64_t n, std::int64_t limit) {
    for (std::int64_t d = std::min(n, limit); d > 1; --d)
        if (n % d == 0) return d;
    return 1;
}

bool splittable(Prim p) {
    switch (p) {
        case Prim::Sum:
        case Prim::Prod:
        case Prim::Amax:
        case Prim::Amin:
        case Prim::All:
        case Prim::Any:
        case Prim::XorSum:
            return true;
        default:
            return false;
    }
}

constexpr std::int64_t kFewResults = 16;
constexpr std::int64_t kLargeReduction = 1 << 15;
constexpr std::int64_t kChunk = 2048;

// A reduction of many elements to few: first to partial results over the leading reduced dims (or
// chunks of the only one), then those. The partial results are the parallel work.
std::optional<ValueId> two_stages(Graph& g, const Node& n, ValueId x, const Sizes& result,
                                  int cores) {
    if (!splittable(n.prim)) return std::nullopt;
    Ints dims = n.attrs.get<Ints>("dims");
    std::sort(dims.begin(), dims.end());
    Sizes sizes = g.type(x).sizes;
    std::int64_t total = 1, results = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (!sizes[i].is_constant()) return std::nullopt;
        (reduced(dims, i) ? total : results) *= sizes[i].constant();
    }
    if (results == 0 || results > kFewResults || results >= 4 * cores || total < kLargeReduction)
        return std::nullopt;
    DType dtype = g.type(x).dtype;
    if (n.prim == Prim::Sum || n.prim == Prim::Prod) x = convert(g, x, compute_type(dtype));
    std::erase_if(dims, [&](std::int64_t d) { return sizes[static_cast<std::size_t>(d)].is(1); });
    auto first = static_cast<std::size_t>(dims[0]);
    std::int64_t parts = sizes[first].constant();
    if (dims.size() == 1) {
        std::int64_t chunks = divisor_below(parts, std::max<std::int64_t>(parts / kChunk, 1));
        if (chunks == 1) return std::nullopt;
        sizes[first] = parts / chunks;
        sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(first), Expr(chunks));
        x = g.emit(Prim::Reshape, {x}, {{"sizes", sizes}});
        dims.push_back(dims[0] + 1);
    } else if (parts < 2 * cores) {
        return std::nullopt;
    }
    Ints rest(dims.begin() + 1, dims.end());
    ValueId partial = g.emit(n.prim, {x}, {{"dims", rest}});
    ValueId whole = g.emit(n.prim, {partial}, {{"dims", Ints{dims[0]}}});
    whole = convert(g, whole, n.prim == Prim::All || n.prim == Prim::Any ? DType::Bool : dtype);
    if (g.type(whole).sizes == result) return whole;
    return g.emit(Prim::Reshape, {whole}, {{"sizes", result}});
}

// On a GPU: a reduction whose results lie side by side in memory, too few of them to keep the GPU
// busy with a thread each. The leading reduced dims, or chunks of one, first give partial results.
constexpr std::int64_t kManyPartials = 1 << 17;
constexpr std::int64_t kShortest = 32;  // elements to a partial result

std::optional<ValueId> over_columns(Graph& g, Prim prim, ValueId x, Ints dims) {
    if (!splittable(prim)) return std::nullopt;
    std::sort(dims.begin(), dims.end());
    Sizes sizes = g.type(x).sizes;
    const Ints all_dims = dims;
    std::int64_t total = 1, results = 1, beside = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (!sizes[i].is_constant()) return std::nullopt;
        (reduced(dims, i) ? total : results) *= sizes[i].constant();
        if (!dims.empty() && i > static_cast<std::size_t>(dims[0]) && !reduced(dims, i))
            beside *= sizes[i].constant();
    }
    if (results == 0 || beside < 16 || results > kManyPartials / 4 || total < 4 * kShortest)
        return std::nullopt;
    const std::int64_t parts = std::min(kManyPartials / results, total / kShortest);
    std::erase_if(dims, [&](std::int64_t d) { return sizes[static_cast<std::size_t>(d)].is(1); });
    if (dims.size() != all_dims.size()) return std::nullopt;
    std::int64_t made = 1;
    std::size_t leading = 0;
    // A leading dim that has no divisor of use (197 tokens) comes last.
    const auto pieces = [&](std::int64_t d) {
        return divisor_below(sizes[static_cast<std::size_t>(d)].constant(), parts);
    };
    if (pieces(dims[0]) < 4) std::ranges::stable_sort(dims, std::greater<>{}, pieces);
    while (leading < dims.size() &&
           made * sizes[static_cast<std::size_t>(dims[leading])].constant() <= parts)
        made *= sizes[static_cast<std::size_t>(dims[leading++])].constant();
    if (leading < dims.size()) {
        const auto at = static_cast<std::size_t>(dims[leading]);
        const std::int64_t size = sizes[at].constant(), chunks = divisor_below(size, parts / made);
        if (chunks > 1) {
            sizes[at] = size / chunks;
            sizes.insert(sizes.begin() + dims[leading], Expr(chunks));
            x = g.emit(Prim::Reshape, {x}, {{"sizes", sizes}});
            const std::int64_t split = dims[leading];
            for (std::int64_t& d : dims) d += d > split;
            dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(leading) + 1, split + 1);
            made *= chunks;
            ++leading;
        }
    }
    if (made < 4 || leading == dims.size()) return std::nullopt;
    Ints rest(dims.begin() + static_cast<std::ptrdiff_t>(leading), dims.end());
    Ints first(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(leading));
    std::ranges::sort(rest);
    std::ranges::sort(first);
    for (std::int64_t& d : first)  // where they are without the others
        d -= std::count_if(rest.begin(), rest.end(), [&](std::int64_t r) { return r < d; });
    const ValueId partial = g.emit(prim, {x}, {{"dims", rest}});
    return g.emit(prim, {partial}, {{"dims", first}});
}

// On a GPU: sums of the columns of rows that a kernel walks as rows, too (a norm's gradient, of its
// input and of its weights). They are cut into runs of a few rows, over which that kernel can add
// them up as it passes: see fuse.cpp.
constexpr std::int64_t kLongRun = 64, kUsualRun = 16, kLeastRun = 8;
constexpr std::int64_t kRunPoints = 1 << 21, kFewRuns = 512, kManyRuns = 2048;
// A multiprocessor holds two blocks of such rows, which 256 fill in one wave; others in two.
constexpr std::int64_t kWideRow = 4096;
constexpr std::int64_t kPartialsOfBlock = 128, kMostPartials = 1024;

std::optional<ValueId> in_runs(Graph& g, ValueId x, Ints dims) {
    // Rows that were made as several dims, and are one for a product, as they were made.
    const Node* shaped = g.producer(x);
    if (shaped != nullptr && shaped->prim == Prim::Reshape && g.type(x).rank() == 2 &&
        dims == Ints{0}) {
        const Sizes& made = g.type(shaped->operands[0]).sizes;
        if (made.size() > 2 && made.back() == g.type(x).sizes.back()) {
            x = shaped->operands[0];
            dims.resize(made.size() - 1);
            std::iota(dims.begin(), dims.end(), 0);
        }
    }
    x = convert(g, x, DType::F32);
    Sizes sizes = g.type(x).sizes;
    std::int64_t rows = 1, columns = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (!sizes[i].is_constant() || reduced(dims, i) != (i < dims.size())) return std::nullopt;
        (reduced(dims, i) ? rows : columns) *= sizes[i].constant();
    }
    if (columns < 128 || columns > 8192) return std::nullopt;
    const std::int64_t part = columns >= kWideRow ? 2 : 1;
    const std::int64_t few = kFewRuns / part;
    const std::int64_t runs = std::clamp(kRunPoints / part / columns, few, kManyRuns);
    const std::int64_t most = std::min(std::clamp(rows / runs, kUsualRun, kLongRun), rows / few);
    std::size_t at = 0;
    std::int64_t length = 1;
    for (std::size_t i = dims.size(); i-- > 0;) {
        const std::int64_t n = divisor_below(sizes[i].constant(), most);
        if (n > length) {
            at = i;
            length = n;
        }
    }
    if (length < kLeastRun) return std::nullopt;
    sizes[at] = floor_div(sizes[at], length);
    sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(at) + 1, Expr(length));
    x = g.emit(Prim::Reshape, {x}, {{"sizes", sizes}});
    x = g.emit(Prim::Sum, {x}, {{"dims", Ints{static_cast<std::int64_t>(at) + 1}}});
    // A block adds up as many as these by itself.
    const std::int64_t partials = rows / length;
    if (partials > kMostPartials || partials % kPartialsOfBlock != 0 || columns % 32 != 0)
        if (auto staged = over_columns(g, Prim::Sum, x, dims)) return staged;
    return g.emit(Prim::Sum, {x}, {{"dims", dims}});
}

// Which values a reduction over their last dims reads, through computation element by element.
class WalkedRows {
  public:
    explicit WalkedRows(const Graph& g) : g_(g), rows_(g.values().size(), false) {
        for (const Node& n : g.nodes()) {
            if (!is_reduction(n.prim)) continue;
            const Ints& dims = n.attrs.get<Ints>("dims");
            const auto rank = static_cast<std::size_t>(g.type(n.operands[0]).rank());
            bool last = dims.size() < rank;
            for (std::size_t k = 0; k < dims.size(); ++k)
                last = last && reduced(dims, rank - 1 - k);
            if (!last) continue;
            for (ValueId v : sources(n.operands[0])) rows_[v] = true;
        }
        for (const Node& n : g.nodes())
            if (kind(n.prim) == PrimKind::Contraction)
                for (ValueId v : n.operands) operands_.push_back(origin(v));
        std::ranges::sort(operands_);
    }
    /// Also where nothing of a row is added up, but a kernel computes the rows, element by element,
    /// for a product to read (the gradient of an activation, and of the bias before it).
    bool walked(ValueId x) const {
        const Node* made = g_.producer(origin(x));
        if (made != nullptr && is_pointwise(made->prim) &&
            std::ranges::binary_search(operands_, origin(x)))
            return true;
        return std::ranges::any_of(sources(x), [&](ValueId v) { return rows_[v]; });
    }

  private:
    // The value that `v` is another shape of.
    ValueId origin(ValueId v) const {
        for (const Node* n = g_.producer(v);
             n != nullptr && (n->prim == Prim::Reshape || n->prim == Prim::Permute);
             n = g_.producer(v))
            v = n->operands[0];
        return v;
    }
    // Values of x's size that x is computed from and that are not computed element by element.
    std::vector<ValueId> sources(ValueId x) const {
        std::vector<ValueId> work{x}, seen, found;
        const Expr size = g_.type(x).numel();
        while (!work.empty() && seen.size() < kMostSeen) {
            const ValueId v = work.back();
            work.pop_back();
            if (!(g_.type(v).numel() == size) || std::ranges::find(seen, v) != seen.end()) continue;
            seen.push_back(v);
            const Node* n = g_.producer(v);
            if (n == nullptr || !(is_pointwise(n->prim) || n->prim == Prim::Reshape))
                found.push_back(v);
            else
                work.insert(work.end(), n->operands.begin(), n->operands.end());
        }
        return found;
    }

    static constexpr std::size_t kMostSeen = 64;
    const Graph& g_;
    std::vector<bool> rows_;
    std::vector<ValueId> operands_;  // what products read, in order
};

// Nodes an output or an effect needs.
std::vector<bool> live_nodes(const Graph& g) {
    std::vector<bool> live(g.nodes().size(), false);
    std::vector<bool> wanted(g.values().size(), false);
    for (const Output& o : g.outputs()) wanted[o.value] = true;
    for (std::size_t i = g.nodes().size(); i-- > 0;) {
        const Node& n = g.nodes()[i];
        live[i] = has_effect(n) || std::any_of(n.results.begin(), n.results.end(),
                                               [&](ValueId v) { return wanted[v]; });
        if (live[i])
            for (ValueId v : n.operands) wanted[v] = true;
    }
    return live;
}

bool is_empty(const Type& t) {
    return std::any_of(t.sizes.begin(), t.sizes.end(), [](Expr e) { return e.is(0); });
}

ValueId full(Graph& g, const Type& t, const Scalar& value) {
    NodeId id = g.add_with_types(Prim::Full, {},
                                 {{"dtype", t.dtype}, {"sizes", t.sizes}, {"value", value}}, {t});
    return g.node(id).results[0];
}

// A probability for all elements is read from one place.
void one_probability(Rewriter& r, const Graph& old, const Node& n) {
    const Type& type = old.type(n.operands[0]);
    ValueId p = r(n.operands[0]);
    if (const auto value = full_value(old, n.operands[0]))
        p = r.out().emit(Prim::Broadcast, {full(r.out(), {type.dtype, {}, type.device}, *value)},
                         {{"sizes", type.sizes}, {"dims", Ints{}}});
    r.map(n.results[0], r.out().emit(n.prim, {p}, n.attrs, n.origin));
}

// Values without elements, and reductions of nothing: index arithmetic has no answer for them.
// True when the node was one.
bool replace_empty(Rewriter& r, const Graph& old, const Node& n) {
    if (kind(n.prim) == PrimKind::Effect || n.results.empty()) return false;
    const bool nothing = std::all_of(n.results.begin(), n.results.end(),
                                     [&](ValueId v) { return is_empty(old.type(v)); });
    if (nothing) {
        for (ValueId v : n.results) r.map(v, full(r.out(), old.type(v), Scalar(0)));
        return true;
    }
    if (!is_reduction(n.prim) || !is_empty(old.type(n.operands[0]))) return false;
    switch (n.prim) {
        case Prim::Sum:
        case Prim::XorSum:
        case Prim::Any:
        case Prim::Norm2:
            r.map(n.results[0], full(r.out(), old.type(n.results[0]), Scalar(0)));
            return true;
        case Prim::Prod:
        case Prim::All:
            r.map(n.results[0], full(r.out(), old.type(n.results[0]), Scalar(1)));
            return true;
        default:
            throw NotSupported(std::string(name(n.prim)) + " of no elements");
    }
}

void legalize_node(Rewriter& r, const Graph& old, NodeId id, const std::vector<int>& uses,
                   const LegalizeOptions& options, const WalkedRows* rows, Sums& sums,
                   const RowsOfDistances& of_distances, std::vector<ValueId>& in_memory) {
    const Node& n = old.node(id);
    Graph& g = r.out();
    if (replace_empty(r, old, n)) return;
    switch (n.prim) {
        case Prim::Var:
            if (is_complex(old.type(n.operands[0]).dtype)) break;
            r.map(n.results[0],
                  variance(g, sums, n, r(n.operands[0]), options.gpu,
                           of_distances.contains({n.operands[0], n.attrs.get<Ints>("dims")})));
            return;
        case Prim::Norm2:
            if (is_complex(old.type(n.operands[0]).dtype)) break;
            r.map(n.results[0], norm2(g, n, r(n.operands[0])));
            return;
        case Prim::RandBernoulli:
            one_probability(r, old, n);
            return;
        case Prim::MaxPoolIndices:
            // With positions, which training wants, a GPU's library reads each image once.
            if (options.gpu && uses[n.results[1]] != 0 &&
                is_reduced_float(old.type(n.results[0]).dtype))
                break;
            max_pool(r, old, n, uses);
            return;
        case Prim::MaxPoolGrad:
            if (options.gpu && gathered_gradient(r, old, n, in_memory)) return;
            break;
        case Prim::Conv:
        case Prim::PackedConv:
        case Prim::ConvGradInput:
        case Prim::ConvGradWeight:
            if (legalize_convolution(r, old, n, in_memory, options)) return;
            break;
        default:
            if (!is_reduction(n.prim)) break;
            if (auto v = two_stages(g, n, r(n.operands[0]), old.type(n.results[0]).sizes,
                                    options.cores)) {
                r.map(n.results[0], *v);
                return;
            }
            if (n.prim == Prim::Sum) {
                const ValueId x = r(n.operands[0]);
                const DType type = g.type(x).dtype;
                if (rows != nullptr && is_float(type) && compute_type(type) == DType::F32 &&
                    rows->walked(n.operands[0]))
                    if (auto v = in_runs(g, x, n.attrs.get<Ints>("dims"))) {
                        r.map(n.results[0], convert(g, *v, type));
                        return;
                    }
                if (options.gpu && type != compute_type(type)) {  // partial sums are not rounded
                    const ValueId wide = convert(g, x, compute_type(type));
                    if (auto v = over_columns(g, n.prim, wide, n.attrs.get<Ints>("dims"))) {
                        r.map(n.results[0], convert(g, *v, type));
                        return;
                    }
                }
                const Ints dims = n.attrs.get<Ints>("dims");
                if (options.gpu)
                    if (auto v = sum_of_distances(g, sums, x, dims)) {
                        r.map(n.results[0], *v);
                        return;
                    }
                r.map(n.results[0], sum_over(g, sums, x, dims, options.gpu));
                return;
            }
    }
    r.copy(id);
}

// An output that must be copied because its value is an input or a constant, has been given
// already, or is written into an input's memory.
void make_outputs_distinct(Graph& g) {
    std::vector<bool> taken(g.values().size(), false);
    for (const Input& in : g.inputs()) taken[in.value] = true;
    for (Output& o : g.mutable_outputs()) {
        const Node* producer = g.producer(o.value);
        bool constant = producer != nullptr && producer->prim == Prim::Constant;
        bool copy = o.writes_input >= 0 || taken[o.value] || constant;
        taken[o.value] = true;
        if (!copy) continue;
        const Sizes sizes = g.type(o.value).sizes;
        // What is written into an input is complete in memory of its own before any input changes.
        if (o.writes_input >= 0 && (producer == nullptr || constant))
            o.value = g.emit(Prim::Reshape, {o.value}, {{"sizes", sizes}});
        o.value = g.emit(Prim::Reshape, {o.value}, {{"sizes", sizes}});
    }
}

}  // namespace

Legalized legalize(const Graph& graph, const LegalizeOptions& options) {
    std::vector<int> uses = use_counts(graph);
    std::vector<bool> live = live_nodes(graph);
    Rewriter r(graph);
    Sums sums;
    std::vector<ValueId> in_memory;
    std::optional<WalkedRows> rows;
    if (options.gpu) rows.emplace(graph);
    const RowsOfDistances of_distances = options.gpu ? rows_of_distances(graph) : RowsOfDistances{};
    for (NodeId id = 0; id < graph.nodes().size(); ++id)
        if (live[id])
            legalize_node(r, graph, id, uses, options, rows ? &*rows : nullptr, sums, of_distances,
                          in_memory);
    Graph g = r.finish();
    make_outputs_distinct(g);
    return {std::move(g), std::move(in_memory)};
}

}  // namespace ingot::sched
