// See split_rows.h.
#include "schedule/split_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "schedule/convert.h"

namespace ingot::sched {

namespace {

constexpr std::int64_t kLongRow = 1 << 15;    // elements from which few rows are cut
constexpr std::int64_t kOfBlock = 128 << 10;  // bytes of a row that a block's registers keep
constexpr std::int64_t kPiece = 16 << 10;   // bytes of a piece that many threads keep in registers
constexpr std::int64_t kLeastPiece = 1024;  // elements
constexpr std::int64_t kShortRun = 64;      // neighbours in memory that are no row to walk
constexpr std::int64_t kBlocks = 8;         // of a multiprocessor: pieces that keep it busy
constexpr std::int64_t kPoints = 1 << 17;   // that keep a GPU busy with a thread each
constexpr std::int64_t kMostColumn = 128;   // that a block's registers keep for two passes
constexpr std::size_t kMostSeen = 16;
constexpr std::int64_t kFewColumns = 1 << 12;
constexpr std::int64_t kLeastBeside = 16, kLargeColumns = 1 << 18;  // elements
constexpr std::int64_t kUneven = 4;  // times more or fewer pieces than wanted: too far from it
constexpr std::int64_t kEven = 64;   // elements that divide pieces of sizes without divisors
constexpr std::int64_t kLeastColumn = 32;  // elements of a thread alone

bool constant_sizes(const Sizes& sizes) {
    return std::ranges::all_of(sizes, [](Expr e) { return e.is_constant(); });
}

// The divisor of n nearest to `wanted`, by ratio.
std::int64_t divisor_near(std::int64_t n, std::int64_t wanted) {
    std::int64_t best = 1;
    const auto ratio = [&](std::int64_t d) {
        return std::abs(std::log2(double(d) / double(wanted)));
    };
    for (std::int64_t d = 1; d * d <= n; ++d) {
        if (n % d != 0) continue;
        for (const std::int64_t e : {d, n / d})
            if (ratio(e) < ratio(best)) best = e;
    }
    return best;
}

// Values whose elements are spread over what they have been reduced from, through computation
// element by element: their rows are read again.
std::vector<bool> spread_values(const Graph& g) {
    std::vector<bool> spread(g.values().size(), false);
    for (std::size_t i = g.nodes().size(); i-- > 0;) {
        const Node& n = g.nodes()[i];
        if (n.results.size() != 1) continue;
        const ValueId v = n.results[0];
        const Expr all = g.type(v).numel();
        for (const ValueId o : n.operands) {
            if (n.prim == Prim::Broadcast && known_lt(g.type(o).numel(), all) == true)
                spread[o] = true;
            else if ((is_pointwise(n.prim) || is_movement(n.prim)) && g.type(o).numel() == all)
                spread[o] = spread[o] || spread[v];
        }
    }
    return spread;
}

// Of the widest that lies in memory and `x` is computed of, element by element: rows of 16 bits are
// kept as they are, so that a row's maximum and what is taken off it are cut alike.
std::int64_t element_bytes(const Graph& g, ValueId x) {
    std::vector<ValueId> work{x};
    const Expr all = g.type(x).numel();
    std::int64_t widest = 1;
    for (std::size_t k = 0; k < work.size(); ++k) {
        const Node* n = g.producer(work[k]);
        if (k < kMostSeen && n != nullptr && (is_pointwise(n->prim) || is_movement(n->prim))) {
            for (const ValueId o : n->operands)
                if (g.type(o).numel() == all) work.push_back(o);
        } else {
            widest = std::max<std::int64_t>(widest, bytes(g.type(work[k]).dtype));
        }
    }
    return widest;
}

/// A reduction that is cut: which of its dims, outermost in memory first, make its pieces.
class Cut {
  public:
    Cut(Graph& g, ValueId x, const Ints& dims) : g_(g), x_(x), sizes_(g.type(x).sizes) {
        for (std::size_t d = 0; d < sizes_.size(); ++d)
            (reduced(dims, d) ? length_ : rows_) *= sizes_[d].constant();
        for (const std::int64_t d : dims) (size(d) == 1 ? ones_ : walked_).push_back(d);
    }

    /// `order`: of all dims in memory.
    std::optional<Stages> run(Ints order, std::int64_t cores) {
        if (reads_whole(x_)) merge(order);
        std::erase_if(order, [&](std::int64_t d) { return size(d) == 1; });
        const auto place = [&](std::int64_t d) { return std::ranges::find(order, d); };
        std::ranges::sort(walked_, {}, place);
        if (walked_.empty() || walked_.back() != order.back()) return std::nullopt;
        const std::int64_t run = take_short_run(order);
        const std::int64_t piece = kPiece / element_bytes(g_, x_);
        const std::int64_t pieces =
            columns_.empty()
                ? std::max(length_ / piece,
                           std::min(kBlocks * cores / rows_, length_ / kLeastPiece))
                : std::max(std::min(kPoints / (rows_ * run), length_ / run / kLeastColumn),
                           length_ / run / kMostColumn);
        if (pieces < 2 || !cut_into(pieces)) return std::nullopt;
        return stages();
    }

    /// The same where results lie side by side in memory: as many pieces as keep a GPU busy, or as
    /// registers keep.
    std::optional<Stages> run_columns(Ints order) {
        std::erase_if(order, [&](std::int64_t d) { return size(d) == 1; });
        if (reads_whole(x_)) merge(order);
        std::ranges::sort(walked_, {}, [&](std::int64_t d) { return std::ranges::find(order, d); });
        std::int64_t beside = 1;
        for (std::size_t k = order.size(); k-- > 0 && !is_walked(order[k]);)
            beside *= size(order[k]);
        if (walked_.empty() || beside < kLeastBeside || length_ * rows_ < kLargeColumns)
            return std::nullopt;
        const std::int64_t pieces =
            std::max(std::min(kPoints / rows_, length_ / kLeastColumn), length_ / kMostColumn);
        if (pieces < 2 || !cut_into(pieces)) return std::nullopt;
        return stages();
    }

  private:
    Stages stages() const {
        Stages stages{x_, walked_, first_, tail_, tail_dims_};
        stages.rest.insert(stages.rest.end(), ones_.begin(), ones_.end());
        std::ranges::sort(stages.rest);
        stages.first.insert(stages.first.end(), columns_.begin(), columns_.end());
        std::ranges::sort(stages.first);
        for (std::int64_t& d : stages.first)  // where they are without the others
            d -= std::ranges::count_if(stages.rest, [&](std::int64_t r) { return r < d; });
        return stages;
    }

    // Whether all that `v` is computed from has its sizes, so that merged dims are walked alike.
    bool reads_whole(ValueId v) const {
        std::vector<ValueId> work{v};
        for (std::size_t k = 0; k < work.size(); ++k) {
            const Node* n = g_.producer(work[k]);
            if (!(g_.type(work[k]).sizes == g_.type(v).sizes) || k > kMostSeen) return false;
            if (n != nullptr && is_pointwise(n->prim))
                work.insert(work.end(), n->operands.begin(), n->operands.end());
            else if (n != nullptr && is_movement(n->prim))
                return false;
        }
        return true;
    }

    // Reduced dims that are neighbours in memory as they are in the value become one.
    void merge(Ints& order) {
        std::vector<bool> reduced_dim(sizes_.size(), false);
        for (const std::int64_t d : walked_) reduced_dim[static_cast<std::size_t>(d)] = true;
        for (std::size_t d = sizes_.size(); d-- > 1;) {
            const auto at = std::ranges::find(order, static_cast<std::int64_t>(d) - 1);
            if (!reduced_dim[d] || !reduced_dim[d - 1] || at + 1 >= order.end() ||
                at[1] != static_cast<std::int64_t>(d))
                continue;
            sizes_[d - 1] =
                size(static_cast<std::int64_t>(d) - 1) * size(static_cast<std::int64_t>(d));
            sizes_.erase(sizes_.begin() + static_cast<std::ptrdiff_t>(d));
            reduced_dim.erase(reduced_dim.begin() + static_cast<std::ptrdiff_t>(d));
            order.erase(at + 1);
            std::erase(walked_, static_cast<std::int64_t>(d));
            for (Ints* list : {&order, &walked_, &ones_})
                for (std::int64_t& e : *list) e -= e > static_cast<std::int64_t>(d);
        }
        if (sizes_.size() < g_.type(x_).sizes.size())
            x_ = g_.emit(Prim::Reshape, {x_}, {{"sizes", sizes_}});
    }

    bool is_walked(std::int64_t d) const { return std::ranges::find(walked_, d) != walked_.end(); }

    std::int64_t size(std::int64_t d) const {
        return sizes_[static_cast<std::size_t>(d)].constant();
    }

    // Few neighbours in memory (a group's channels) are columns of a piece and no row to walk:
    // results lie side by side then. Their number; 1 where there are none.
    std::int64_t take_short_run(const Ints& order) {
        std::int64_t run = 1;
        std::size_t n = 0;
        while (n < walked_.size() && walked_.end()[-1 - static_cast<std::ptrdiff_t>(n)] ==
                                         order.end()[-1 - static_cast<std::ptrdiff_t>(n)])
            run *= size(walked_.end()[-1 - static_cast<std::ptrdiff_t>(n++)]);
        if (run >= kShortRun || n == walked_.size()) return 1;
        columns_.assign(walked_.end() - static_cast<std::ptrdiff_t>(n), walked_.end());
        walked_.resize(walked_.size() - n);
        return run;
    }

    bool cut_into(std::int64_t pieces) {
        std::int64_t made = 1;
        while (!walked_.empty() && made * size(walked_.front()) <= pieces) {
            made *= size(walked_.front());
            first_.push_back(walked_.front());
            walked_.erase(walked_.begin());
        }
        if (walked_.empty()) return false;
        const std::int64_t at = walked_.front(), all = size(at);
        const std::int64_t wanted = (pieces + made - 1) / made;
        const std::int64_t chunks = divisor_near(all, wanted);
        if (wanted >= 2 && (chunks > kUneven * wanted || wanted > kUneven * chunks))
            cut_unevenly(at, wanted);
        else if (chunks == all && walked_.size() > 1)
            move_to_first(at);
        else if (chunks > 1 && chunks < all)
            cut_dim(at, chunks);
        return !first_.empty();
    }

    void move_to_first(std::int64_t at) {
        first_.push_back(at);
        walked_.erase(walked_.begin());
    }

    // Sizes without divisors of use (primes): what whole pieces leave is a value of its own.
    void cut_unevenly(std::int64_t at, std::int64_t wanted) {
        const std::int64_t all = size(at);
        std::int64_t piece = all / wanted;
        if (piece >= kEven) piece -= piece % kEven;
        const std::int64_t whole = all / piece * piece;
        tail_ = slice(at, whole, all);
        for (const Ints* list : {&first_, &walked_, &columns_, &ones_})
            tail_dims_.insert(tail_dims_.end(), list->begin(), list->end());
        std::ranges::sort(tail_dims_);
        x_ = slice(at, 0, whole);
        sizes_[static_cast<std::size_t>(at)] = whole;
        if (piece == 1)
            move_to_first(at);
        else
            cut_dim(at, whole / piece);
    }

    ValueId slice(std::int64_t at, std::int64_t from, std::int64_t to) {
        if (from == to) return kNone;
        Sizes starts(sizes_.size(), Expr(0)), ends = sizes_;
        starts[static_cast<std::size_t>(at)] = from;
        ends[static_cast<std::size_t>(at)] = to;
        return g_.emit(Prim::Slice, {x_},
                       {{"starts", starts}, {"ends", ends}, {"steps", Ints(sizes_.size(), 1)}});
    }

    void cut_dim(std::int64_t at, std::int64_t chunks) {
        sizes_[static_cast<std::size_t>(at)] = size(at) / chunks;
        sizes_.insert(sizes_.begin() + at, Expr(chunks));
        x_ = g_.emit(Prim::Reshape, {x_}, {{"sizes", sizes_}});
        for (Ints* list : {&first_, &walked_, &columns_, &ones_})
            for (std::int64_t& d : *list) d += d >= at;
        first_.push_back(at);
    }

    Graph& g_;
    ValueId x_;
    Sizes sizes_;
    std::int64_t length_ = 1, rows_ = 1;
    Ints walked_, columns_, ones_, first_;
    ValueId tail_ = kNone;
    Ints tail_dims_;
};

// Two partial results of a prim as one.
ValueId both(Graph& g, Prim prim, ValueId a, ValueId b) {
    const auto of_two = [&] {
        switch (prim) {
            case Prim::Sum:
                return Prim::Add;
            case Prim::Prod:
                return Prim::Mul;
            case Prim::Amax:
                return Prim::Maximum;
            case Prim::Amin:
                return Prim::Minimum;
            case Prim::All:
                return Prim::LogicalAnd;
            case Prim::Any:
                return Prim::LogicalOr;
            default:
                return Prim::BitwiseXor;
        }
    };
    return g.emit(of_two(), {a, b});
}

Ints row_major(const Graph& g, ValueId x) {
    Ints order(g.type(x).sizes.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
}

ValueId full_value(Graph& g, ValueId like, std::int64_t n) {
    return full_like(g, like, Scalar(static_cast<double>(n)));
}

std::int64_t elements(const Graph& g, ValueId x, const Ints& dims) {
    std::int64_t n = 1;
    for (const std::int64_t d : dims) n *= g.type(x).sizes[static_cast<std::size_t>(d)].constant();
    return n;
}

}  // namespace

SplitRows::SplitRows(const Graph& old, const Layouts* layouts, int cores)
    : layouts_(layouts), cores_(cores) {
    if (layouts != nullptr) spread_ = spread_values(old);
}

bool SplitRows::wants(const Graph& g, ValueId x, const Ints& dims, ValueId result) const {
    const Sizes& sizes = g.type(x).sizes;
    std::int64_t length = 1, rows = 1;
    for (std::size_t d = 0; d < sizes.size(); ++d)
        (reduced(dims, d) ? length : rows) *= sizes[d].constant();
    if (length < kLongRow || rows == 0) return false;
    const bool is_long = length * element_bytes(g, x) > kOfBlock;
    return rows < cores_ || (is_long && (rows < 4 * cores_ || spread_[result]));
}

bool SplitRows::wants_columns(const Graph& g, ValueId x, const Ints& dims, const Ints& order,
                              ValueId result) const {
    if (dims.empty()) return false;
    const Sizes& sizes = g.type(x).sizes;
    const auto size = [&](std::int64_t d) { return sizes[static_cast<std::size_t>(d)].constant(); };
    std::int64_t beside = 1, after = 1, length = 1, rows = 1;
    for (std::size_t k = order.size(); k-- > 0;) {
        if (reduced(dims, static_cast<std::size_t>(order[k])) && size(order[k]) > 1) break;
        beside *= size(order[k]);
    }
    // What is columns by the value's own dims, too, has forms of its own: see columns_in_stages.
    const auto first = static_cast<std::size_t>(*std::ranges::min_element(dims));
    for (std::size_t d = first; d < sizes.size(); ++d)
        if (!reduced(dims, d)) after *= sizes[d].constant();
    for (std::size_t d = 0; d < sizes.size(); ++d)
        (reduced(dims, d) ? length : rows) *= sizes[d].constant();
    return beside >= kLeastBeside && after < kLeastBeside && length > 4 * kMostColumn &&
           (spread_[result] || rows < kPoints / 4);
}

Ints SplitRows::memory_order(ValueId was) const {
    const Sizes& strides = layouts_->strides(was);
    Ints order(strides.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
        const Expr of_a = strides[static_cast<std::size_t>(a)];
        const Expr of_b = strides[static_cast<std::size_t>(b)];
        return of_a.is_constant() && of_b.is_constant() && of_a.constant() > of_b.constant();
    });
    return order;
}

std::optional<ValueId> SplitRows::reduce(Graph& g, Prim prim, ValueId x, const Ints& dims,
                                         ValueId was, ValueId result) {
    if (layouts_ == nullptr || !splittable(prim)) return std::nullopt;
    if (const auto found = made_.find({prim, x, dims}); found != made_.end())
        return found->second.whole;
    if (!constant_sizes(g.type(x).sizes) || is_complex(g.type(x).dtype)) return std::nullopt;
    const Ints order = memory_order(was);
    std::optional<Stages> stages;
    if (wants_columns(g, x, dims, order, result))
        stages = Cut(g, x, dims).run_columns(order);
    else if (wants(g, x, dims, result))
        stages = Cut(g, x, dims).run(order, cores_);
    if (!stages) return std::nullopt;
    return make(g, prim, x, dims, *stages);
}

std::optional<ValueId> SplitRows::reduce_columns(Graph& g, Prim prim, ValueId x, const Ints& dims) {
    if (layouts_ == nullptr || !splittable(prim)) return std::nullopt;
    if (const auto found = made_.find({prim, x, dims}); found != made_.end())
        return found->second.whole;
    auto stages = columns_in_stages(g, x, dims);
    // Many columns have threads enough, and of short ones registers keep all; but what a maximum is
    // taken off is read again.
    bool wanted = !stages && constant_sizes(g.type(x).sizes) && !is_complex(g.type(x).dtype);
    if (wanted) {
        const std::int64_t length = std::max<std::int64_t>(elements(g, x, dims), 1);
        const std::int64_t columns = g.type(x).numel().constant() / length;
        const bool is_long = length > 4 * kMostColumn;
        wanted = columns < kFewColumns ? length >= kMostColumn
                                       : is_long && (prim == Prim::Amax || columns <= kPoints / 4);
    }
    if (wanted) stages = Cut(g, x, dims).run_columns(row_major(g, x));
    if (!stages) return std::nullopt;
    return make(g, prim, x, dims, *stages);
}

ValueId SplitRows::make(Graph& g, Prim prim, ValueId x, const Ints& dims, const Stages& stages) {
    const ValueId partial = g.emit(prim, {stages.x}, {{"dims", stages.rest}});
    ValueId whole = finish(g, prim, partial, stages.first);
    if (stages.tail != kNone)
        whole = both(g, prim, whole, g.emit(prim, {stages.tail}, {{"dims", stages.tail_dims}}));
    made_[{prim, x, dims}] = {stages, partial, whole};
    return whole;
}

ValueId SplitRows::finish(Graph& g, Prim prim, ValueId partial, const Ints& dims) const {
    const std::int64_t length = elements(g, partial, dims);
    if (length >= kLongRow && g.type(partial).numel().constant() / length < cores_) {
        if (const auto stages = Cut(g, partial, dims).run(row_major(g, partial), cores_)) {
            partial = g.emit(prim, {stages->x}, {{"dims", stages->rest}});
            const ValueId whole = finish(g, prim, partial, stages->first);
            if (stages->tail == kNone) return whole;
            return both(g, prim, whole,
                        g.emit(prim, {stages->tail}, {{"dims", stages->tail_dims}}));
        }
    }
    return g.emit(prim, {partial}, {{"dims", dims}});
}

std::optional<ValueId> SplitRows::squares(Graph& g, ValueId x, const Ints& dims,
                                          ValueId mean) const {
    const auto found = made_.find({Prim::Sum, x, dims});
    if (found == made_.end()) return std::nullopt;
    const auto& [stages, sums, whole] = found->second;
    const Sizes sizes = g.type(stages.x).sizes, of_parts = g.type(sums).sizes;
    const ValueId count = full_value(g, sums, elements(g, stages.x, stages.rest));
    const ValueId means = g.emit(Prim::Div, {sums, count});
    const ValueId away =
        g.emit(Prim::Sub, {stages.x, broadcast_back(g, means, sizes, stages.rest)});
    const ValueId squares =
        g.emit(Prim::Sum, {g.emit(Prim::Mul, {away, away})}, {{"dims", stages.rest}});
    const ValueId apart =
        g.emit(Prim::Sub, {means, broadcast_back(g, mean, of_parts, stages.first)});
    const ValueId between = g.emit(Prim::Mul, {g.emit(Prim::Mul, {apart, apart}), count});
    const ValueId whole_squares =
        finish(g, Prim::Sum, g.emit(Prim::Add, {squares, between}), stages.first);
    if (stages.tail == kNone) return whole_squares;
    const ValueId rest =
        g.emit(Prim::Sub,
               {stages.tail, broadcast_back(g, mean, g.type(stages.tail).sizes, stages.tail_dims)});
    return both(g, Prim::Sum, whole_squares,
                g.emit(Prim::Sum, {g.emit(Prim::Mul, {rest, rest})}, {{"dims", stages.tail_dims}}));
}

std::optional<ValueId> SplitRows::exponentials(Graph& g, ValueId x, const Ints& dims) const {
    const auto found = made_.find({Prim::Amax, x, dims});
    if (found == made_.end()) return std::nullopt;
    const auto& [stages, maxima, whole] = found->second;
    const Sizes sizes = g.type(stages.x).sizes, of_parts = g.type(maxima).sizes;
    // A piece of nothing but -inf has no distances from its maximum: all of it counts as 0.
    const ValueId nothing = full_like(g, maxima, -std::numeric_limits<double>::infinity());
    const ValueId none = g.emit(Prim::Eq, {maxima, nothing});
    const ValueId from = g.emit(Prim::Select, {none, full_like(g, maxima, 0.0), maxima});
    const ValueId away = g.emit(Prim::Sub, {stages.x, broadcast_back(g, from, sizes, stages.rest)});
    const ValueId sums = g.emit(Prim::Sum, {g.emit(Prim::Exp, {away})}, {{"dims", stages.rest}});
    const ValueId down =
        g.emit(Prim::Sub, {maxima, broadcast_back(g, whole, of_parts, stages.first)});
    const ValueId whole_sums =
        finish(g, Prim::Sum, g.emit(Prim::Mul, {sums, g.emit(Prim::Exp, {down})}), stages.first);
    if (stages.tail == kNone) return whole_sums;
    const ValueId rest = g.emit(
        Prim::Sub,
        {stages.tail, broadcast_back(g, whole, g.type(stages.tail).sizes, stages.tail_dims)});
    return both(g, Prim::Sum, whole_sums,
                g.emit(Prim::Sum, {g.emit(Prim::Exp, {rest})}, {{"dims", stages.tail_dims}}));
}

ValueId exponentials_of(const Graph& g, const Node& n) {
    const auto made_by = [&](ValueId v, Prim prim) {
        const Node* made = g.producer(v);
        return made != nullptr && made->prim == prim ? made : nullptr;
    };
    if (n.prim != Prim::Sum || g.type(n.operands[0]).dtype != DType::F32) return kNone;
    const Node* exp = made_by(n.operands[0], Prim::Exp);
    const Node* away = exp == nullptr ? nullptr : made_by(exp->operands[0], Prim::Sub);
    const Node* spread = away == nullptr ? nullptr : made_by(away->operands[1], Prim::Broadcast);
    if (spread == nullptr) return kNone;
    const ValueId x = away->operands[0];
    ValueId number = spread->operands[0];
    // With the reduced dims, of size 1, or without them.
    if (const Node* shaped = made_by(number, Prim::Reshape)) number = shaped->operands[0];
    const Node* max = made_by(number, Prim::Amax);
    const Ints& dims = n.attrs.get<Ints>("dims");
    if (max == nullptr || max->operands[0] != x || max->attrs.get<Ints>("dims") != dims)
        return kNone;
    Ints kept;
    for (const std::int64_t d : spread->attrs.get<Ints>("dims"))
        if (!reduced(dims, static_cast<std::size_t>(d))) kept.push_back(d);
    return kept.size() + dims.size() == g.type(x).sizes.size() && std::ranges::is_sorted(kept)
               ? x
               : kNone;
}

}  // namespace ingot::sched
