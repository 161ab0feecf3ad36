// Random graphs for property tests: pointwise, reduction and movement prims over small shapes, one
// of whose sizes may be symbolic. Deterministic by seed.
#pragma once
#include <random>
#include <string>

#include "ir/graph.h"

namespace ingot::testing {

class RandomGraph {
  public:
    explicit RandomGraph(std::uint64_t seed, bool symbolic = true)
        : random_(seed), symbolic_(symbolic) {}

    /// A graph of about `nodes` nodes whose last values are its outputs.
    Graph make(int nodes) {
        Graph g;
        Expr s0 = symbolic_ ? g.pool().symbol("s0", {1, 64}) : Expr(5);
        const std::vector<Sizes> shapes{{4, s0}, {s0, 4}, {4, 1}, {3, 4, s0}};
        for (int i = 0; i < 3; ++i) {
            const Sizes& s = shapes[pick(shapes.size())];
            DType t = i == 2 ? DType::F64 : DType::F32;
            g.add_input({t, s, {}}, "in" + std::to_string(i), contiguous_strides(s), coin());
        }
        while (static_cast<int>(g.nodes().size()) < nodes) add_node(g);
        for (int i = 0; i < 2; ++i) {
            auto v = static_cast<ValueId>(g.values().size() - 1 - pick(3));
            Sizes strides = contiguous_strides(g.type(v).sizes);
            g.add_output(v, strides);
        }
        return g;
    }
    std::size_t pick(std::size_t n) { return random_() % n; }
    bool coin() { return random_() % 2 == 0; }

  private:
    ValueId any(Graph& g) { return static_cast<ValueId>(pick(g.values().size())); }
    std::string origin() {
        return coin() ? "" : "aten::op" + std::to_string(pick(9)) + ", line \\ \n#2";
    }

    void add_node(Graph& g) {
        ValueId a = any(g);
        const Type type = g.type(a);
        auto rank = static_cast<std::int64_t>(type.rank());
        switch (pick(8)) {
            case 0:
                return unary(g, a);
            case 1:
            case 2:
                return binary(g, a);
            case 3: {  // transposed
                if (rank < 2) return;
                Ints dims;
                for (std::int64_t i = 0; i < rank; ++i) dims.push_back((i + 1) % rank);
                g.emit(Prim::Permute, {a}, {{"dims", dims}}, origin());
                return;
            }
            case 4: {  // reduced and broadcast back, or not
                if (rank == 0 || !is_float(type.dtype)) return;
                auto d = static_cast<std::int64_t>(pick(static_cast<std::size_t>(rank)));
                Prim p = coin() ? Prim::Sum : Prim::Amax;
                ValueId r = g.emit(p, {a}, {{"dims", Ints{d}}}, origin());
                Ints kept;
                for (std::int64_t i = 0; i < rank; ++i)
                    if (i != d) kept.push_back(i);
                if (coin()) g.emit(Prim::Broadcast, {r}, {{"sizes", type.sizes}, {"dims", kept}});
                return;
            }
            case 5:
                g.emit(Prim::Reshape, {a}, {{"sizes", Sizes{type.numel()}}}, origin());
                return;
            case 6: {
                if (rank == 0) return;
                Sizes low(type.sizes.size(), 1), high(type.sizes.size(), 0);
                ValueId p = g.emit(Prim::Pad, {a},
                                   {{"low", low}, {"high", high}, {"value", scalar(type.dtype)}});
                Sizes ends = g.type(p).sizes;
                Ints steps(type.sizes.size(), 1);
                g.emit(Prim::Slice, {p}, {{"starts", low}, {"ends", ends}, {"steps", steps}});
                return;
            }
            default:
                g.emit(Prim::Convert, {a},
                       {{"dtype", coin()   ? DType::F32
                                  : coin() ? DType::BF16
                                           : DType::F64}},
                       origin());
        }
    }
    Scalar scalar(DType t) {
        if (t == DType::Bool) return coin();
        if (is_int(t)) return static_cast<std::int64_t>(pick(5)) - 2;
        const double values[] = {0.0, -0.0, 1.0, 2.0, 0.1, -3.5, 1e-30};
        return values[pick(7)];
    }
    void unary(Graph& g, ValueId a) {
        const Prim prims[] = {Prim::Neg, Prim::Abs, Prim::Sin, Prim::Tanh, Prim::Relu, Prim::Sqrt};
        if (is_float(g.type(a).dtype)) g.emit(prims[pick(6)], {a}, {}, origin());
    }
    void binary(Graph& g, ValueId a) {
        const Type type = g.type(a);
        if (!is_float(type.dtype)) return;
        const Prim prims[] = {Prim::Add, Prim::Sub, Prim::Mul, Prim::Div, Prim::Maximum, Prim::Lt};
        ValueId b = kNone;
        for (int i = 0; i < 4 && b == kNone; ++i) {
            ValueId c = any(g);
            if (g.type(c) == type) b = c;
        }
        if (b == kNone)
            b = g.emit(
                Prim::Full, {},
                {{"dtype", type.dtype}, {"sizes", type.sizes}, {"value", scalar(type.dtype)}});
        if (coin()) std::swap(a, b);
        ValueId r = g.emit(prims[pick(6)], {a, b}, {}, origin());
        if (g.type(r).dtype == DType::Bool) g.emit(Prim::Select, {r, a, b});
    }

    std::mt19937_64 random_;
    bool symbolic_;
};

}  // namespace ingot::testing
