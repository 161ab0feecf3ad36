// See layout.h.
#include "schedule/layout.h"

#include <algorithm>
#include <numeric>

#include "schedule/index.h"

namespace ingot::sched {

namespace {

/// Dims from the outermost to the innermost; empty: no preference, row-major.
using Order = std::vector<std::size_t>;

bool is_row_major(const Order& o) { return std::is_sorted(o.begin(), o.end()); }

Order channels_last(std::size_t rank) {
    Order o{0};
    for (std::size_t d = 2; d < rank; ++d) o.push_back(d);
    o.push_back(1);
    return o;
}

// The order in which strides fall; empty for row-major and for what has no order.
Order order_of(const Sizes& sizes, const Sizes& strides) {
    Order o(sizes.size());
    std::iota(o.begin(), o.end(), std::size_t{0});
    bool known = true;
    std::stable_sort(o.begin(), o.end(), [&](std::size_t a, std::size_t b) {
        if (sizes[a].is(1) || sizes[b].is(1)) return false;
        if (strides[a] == strides[b]) return false;
        auto less = known_lt(strides[b], strides[a]);
        known = known && less.has_value();
        return less == true;
    });
    // A broadcast input has no memory order to follow.
    for (std::size_t d = 0; d < sizes.size(); ++d)
        known = known && (sizes[d].is(1) || !strides[d].is(0));
    if (!known || is_row_major(o)) return {};
    return o;
}

class LayoutWalk {
  public:
    LayoutWalk(const Graph& g, bool gpu)
        : g_(g), gpu_(gpu), orders_(g.values().size()), copied_to_(g.values().size(), kNone) {
        find_new_contents();
    }

    std::vector<Order> run() {
        for (const Input& in : g_.inputs())
            orders_[in.value] = order_of(g_.type(in.value).sizes, in.strides);
        for (const Node& n : g_.nodes()) {
            prefer_for_convolutions(n);
            for (ValueId v : n.results) orders_[v] = result(n, v);
        }
        return std::move(orders_);
    }

  private:
    // New contents of inputs are copies, by legalising; what is copied can be made in place only
    // where it lies as the input does. A gradient that is channels last must not draw an
    // optimizer's states, and the weight, into its order.
    void find_new_contents() {
        for (const Output& o : g_.outputs()) {
            const Node* copy = o.writes_input >= 0 ? g_.producer(o.value) : nullptr;
            if (copy == nullptr || copy->prim != Prim::Reshape) continue;
            const ValueId v = copy->operands[0];
            if (g_.producer(v) != nullptr && is_pointwise(g_.producer(v)->prim) &&
                g_.type(v).sizes == g_.type(o.value).sizes)
                copied_to_[v] = g_.inputs()[static_cast<std::size_t>(o.writes_input)].value;
        }
    }

    // What a convolution reads through views is best channels last too.
    void prefer_for_convolutions(const Node& n) {
        const bool gradient = n.prim == Prim::ConvGradInput || n.prim == Prim::ConvGradWeight;
        if (n.prim != Prim::Conv && n.prim != Prim::PackedConv && n.prim != Prim::ConvRelu &&
            !gradient)
            return;
        prefer_channels_last(n.operands[0]);
        if (gpu_) prefer_channels_last(n.operands[1]);
        if (n.operands.size() == 4) prefer_channels_last(n.operands[3]);
    }

    void prefer_channels_last(ValueId v) {
        const Node* source = g_.producer(v);
        if (source != nullptr && orders_[v].empty() && g_.type(v).rank() > 2 &&
            (source->prim == Prim::Pad || is_pointwise(source->prim)))
            orders_[v] = channels_last(static_cast<std::size_t>(g_.type(v).rank()));
    }

    Order result(const Node& n, ValueId v) const {
        auto rank = static_cast<std::size_t>(g_.type(v).rank());
        if (copied_to_[v] != kNone) return orders_[copied_to_[v]];
        if (is_pointwise(n.prim) || n.prim == Prim::Concat || n.prim == Prim::Update) {
            for (ValueId o : n.operands)
                if (!orders_[o].empty()) return orders_[o];
            return {};
        }
        switch (n.prim) {
            case Prim::Conv:
                if (keeps_order(n)) return {};
                [[fallthrough]];
            case Prim::ConvRelu:
            case Prim::PackedConv:
                return rank > 2 ? channels_last(rank) : Order{};
            case Prim::ConvGradInput:
            case Prim::ConvGradWeight:
                // The library's gradients of a row of numbers are row-major on processors.
                return rank > (gpu_ ? 2 : 3) ? channels_last(rank) : Order{};
            case Prim::MaxPoolIndices:
                return orders_[n.operands[0]];
            case Prim::ExternCall:
                return called(n, v);
            case Prim::Attention:
                return rank == 4 ? Order{0, 2, 1, 3} : Order{};
            case Prim::Slice:
            case Prim::Flip:
            case Prim::Pad:
            case Prim::Interpolate:
                return orders_[n.operands[0]];
            case Prim::Reshape:
                return reshaped(n, v);
            case Prim::Permute:
                return permuted(n);
            case Prim::Window: {
                Order o = orders_[n.operands[0]];
                if (!o.empty())
                    for (std::size_t d = o.size(); d < rank; ++d) o.push_back(d);
                return o;
            }
            default:
                return is_reduction(n.prim) ? reduced(n) : Order{};
        }
    }

    // Images of fp32 with few channels that are given with these apart: the library takes them as
    // they are, and writes such.
    bool keeps_order(const Node& n) const {
        const Type& image = g_.type(n.operands[0]);
        return gpu_ && image.dtype == DType::F32 && image.rank() > 3 &&
               orders_[n.operands[0]].empty() && orders_[n.operands[1]].empty() &&
               known_lt(image.sizes[1], kFewestChannels) == true;
    }

    // Where dims are split, or such that are neighbours in memory become one, all stay where they
    // were: partial sums over images, and groups of their channels, keep channels last.
    Order reshaped(const Node& n, ValueId v) const {
        const Order& order = orders_[n.operands[0]];
        const Sizes &from = g_.type(n.operands[0]).sizes, &to = g_.type(v).sizes;
        if (from == to || order.empty() || !gpu_) return from == to ? order : Order{};
        std::vector<Order> pieces(from.size());  // by dim; of dims that become one, by the first
        std::vector<bool> merged(from.size(), false);
        std::size_t next = 0;
        for (std::size_t d = 0; d < from.size();) {
            const std::size_t first = d;
            if (next == to.size()) return {};
            Expr taken = from[d++], made = to[next];
            pieces[first].push_back(next++);
            while (!(made == taken)) {
                if (known_lt(made, taken) == true && next < to.size() && d == first + 1) {
                    made = made * to[next];
                    pieces[first].push_back(next++);
                } else if (known_lt(taken, made) == true && d < from.size() &&
                           pieces[first].size() == 1) {
                    if (!follows(order, d - 1, d)) return {};
                    merged[d] = true;
                    taken = taken * from[d++];
                } else {
                    return {};
                }
            }
        }
        if (next != to.size()) return {};
        Order o;
        for (std::size_t d : order)
            if (!merged[d]) o.insert(o.end(), pieces[d].begin(), pieces[d].end());
        return is_row_major(o) ? Order{} : o;
    }
    static bool follows(const Order& order, std::size_t outer, std::size_t inner) {
        const auto at = std::ranges::find(order, outer);
        return at != order.end() && at + 1 != order.end() && at[1] == inner;
    }

    // As the callee hands it over.
    Order called(const Node& n, ValueId v) const {
        if (!n.attrs.has("orders")) return {};
        const Ints& orders = n.attrs.get<Ints>("orders");
        std::size_t first = 0;
        for (ValueId before : n.results) {
            const auto rank = static_cast<std::size_t>(g_.type(before).rank());
            if (before == v) {
                Order o;
                for (std::size_t d = 0; d < rank; ++d)
                    o.push_back(static_cast<std::size_t>(orders[first + d]));
                return is_row_major(o) ? Order{} : o;
            }
            first += rank;
        }
        return {};
    }

    // A permutation of row-major memory is followed only into the layout of images: elsewhere the
    // next step usually wants rows.
    Order permuted(const Node& n) const {
        const Ints& dims = n.attrs.get<Ints>("dims");
        Order from = orders_[n.operands[0]];
        bool plain = from.empty();
        if (plain) {
            from.resize(dims.size());
            std::iota(from.begin(), from.end(), std::size_t{0});
        }
        Order o;
        for (std::size_t d : from)
            o.push_back(static_cast<std::size_t>(
                std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(d)) - dims.begin()));
        if (is_row_major(o) || (plain && (o.size() < 4 || o != channels_last(o.size())))) return {};
        return o;
    }

    Order reduced(const Node& n) const {
        const Ints& dims = n.attrs.get<Ints>("dims");
        Order o;
        for (std::size_t d : orders_[n.operands[0]]) {
            if (std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(d)) != dims.end())
                continue;
            auto before = std::count_if(dims.begin(), dims.end(), [&](std::int64_t x) {
                return x < static_cast<std::int64_t>(d);
            });
            o.push_back(d - static_cast<std::size_t>(before));
        }
        return is_row_major(o) ? Order{} : o;
    }

    const Graph& g_;
    bool gpu_;
    std::vector<Order> orders_;
    std::vector<ValueId> copied_to_;  // the input whose new contents a value becomes, or kNone
};

Sizes dense(const Sizes& sizes, const Order& order) {
    if (order.empty()) return contiguous_strides(sizes);
    Sizes strides(sizes.size());
    Expr step = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
        strides[order[i]] = step;
        if (!sizes[order[i]].is(0)) step *= sizes[order[i]];
    }
    return strides;
}

}  // namespace

Layouts::Layouts(const Graph& g, bool gpu, const std::vector<ValueId>& copies,
                 const std::vector<ValueId>& turned)
    : strides_(g.values().size()),
      output_(g.values().size(), -1),
      written_(g.values().size(), kNone),
      copy_(g.values().size(), false) {
    for (ValueId v : copies) copy_[v] = true;
    std::vector<Order> orders = LayoutWalk(g, gpu).run();
    for (ValueId v : turned) orders[v] = {1, 0};
    for (ValueId v = 0; v < g.values().size(); ++v) strides_[v] = dense(g.type(v).sizes, orders[v]);
    for (const Input& in : g.inputs()) strides_[in.value] = in.strides;
    for (std::size_t i = 0; i < g.outputs().size(); ++i) {
        const Output& o = g.outputs()[i];
        output_[o.value] = static_cast<std::int32_t>(i);
        strides_[o.value] = o.strides;
        if (o.writes_input >= 0)
            written_[o.value] = g.inputs()[static_cast<std::size_t>(o.writes_input)].value;
    }
    // A constant's bytes are row-major.
    for (const Node& n : g.nodes())
        if (n.prim == Prim::Constant && output_[n.results[0]] < 0)
            strides_[n.results[0]] = contiguous_strides(g.type(n.results[0]).sizes);
}

}  // namespace ingot::sched
