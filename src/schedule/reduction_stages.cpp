// See reduction_stages.h.
#include "schedule/reduction_stages.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "schedule/convert.h"

namespace ingot::sched {

namespace {

// The largest divisor of n that is at most `limit`.
std::int64_t divisor_below(std::int64_t n, std::int64_t limit) {
    for (std::int64_t d = std::min(n, limit); d > 1; --d)
        if (n % d == 0) return d;
    return 1;
}

constexpr std::int64_t kFewResults = 16;
constexpr std::int64_t kLargeReduction = 1 << 15;
constexpr std::int64_t kChunk = 2048;

constexpr std::int64_t kManyPartials = 1 << 17;
constexpr std::int64_t kShortest = 32;  // elements to a partial result

constexpr std::int64_t kLongRun = 64, kUsualRun = 16, kLeastRun = 8;
constexpr std::int64_t kRunPoints = 1 << 21, kFewRuns = 512, kManyRuns = 2048;
// A multiprocessor holds two blocks of such rows, which 256 fill in one wave; others in two.
constexpr std::int64_t kWideRow = 4096;
constexpr std::int64_t kPartialsOfBlock = 128, kMostPartials = 1024;

}  // namespace

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

std::optional<Stages> columns_in_stages(Graph& g, ValueId x, Ints dims) {
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
    return Stages{x, rest, first, kNone, {}};
}

std::optional<ValueId> over_columns(Graph& g, Prim prim, ValueId x, Ints dims) {
    if (!splittable(prim)) return std::nullopt;
    const auto stages = columns_in_stages(g, x, std::move(dims));
    if (!stages) return std::nullopt;
    const ValueId partial = g.emit(prim, {stages->x}, {{"dims", stages->rest}});
    return g.emit(prim, {partial}, {{"dims", stages->first}});
}

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

WalkedRows::WalkedRows(const Graph& g) : g_(g), rows_(g.values().size(), false) {
    for (const Node& n : g.nodes()) {
        if (!is_reduction(n.prim)) continue;
        const Ints& dims = n.attrs.get<Ints>("dims");
        const auto rank = static_cast<std::size_t>(g.type(n.operands[0]).rank());
        bool last = dims.size() < rank;
        for (std::size_t k = 0; k < dims.size(); ++k) last = last && reduced(dims, rank - 1 - k);
        if (!last) continue;
        for (ValueId v : sources(n.operands[0])) rows_[v] = true;
    }
    for (const Node& n : g.nodes())
        if (kind(n.prim) == PrimKind::Contraction)
            for (ValueId v : n.operands) operands_.push_back(origin(v));
    std::ranges::sort(operands_);
}

bool WalkedRows::walked(ValueId x) const {
    const Node* made = g_.producer(origin(x));
    if (made != nullptr && is_pointwise(made->prim) &&
        std::ranges::binary_search(operands_, origin(x)))
        return true;
    return std::ranges::any_of(sources(x), [&](ValueId v) { return rows_[v]; });
}

ValueId WalkedRows::origin(ValueId v) const {
    for (const Node* n = g_.producer(v);
         n != nullptr && (n->prim == Prim::Reshape || n->prim == Prim::Permute); n = g_.producer(v))
        v = n->operands[0];
    return v;
}

std::vector<ValueId> WalkedRows::sources(ValueId x) const {
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

}  // namespace ingot::sched
