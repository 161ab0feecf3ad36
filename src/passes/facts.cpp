// See facts.h.
#include "passes/facts.h"

namespace ingot {

std::optional<Scalar> full_value(const Graph& g, ValueId v) {
    const Node* n = g.producer(v);
    if (n == nullptr || n->prim != Prim::Full) return std::nullopt;
    return n->attrs.get<Scalar>("value");
}

std::optional<Num> full_number(const Graph& g, ValueId v) {
    auto s = full_value(g, v);
    if (!s) return std::nullopt;
    return to_num(*s, g.type(v).dtype);
}

Scalar to_scalar(Num v, DType dtype) {
    if (dtype == DType::Bool) return v.i != 0;
    if (is_integral(dtype)) return v.i;
    if (is_complex(dtype)) return std::complex<double>(v.re, v.im);
    return v.re;
}

ValueId emit_full(Graph& g, const Type& type, Scalar value, std::string origin) {
    Attrs attrs{{"dtype", type.dtype}, {"sizes", type.sizes}, {"value", std::move(value)}};
    NodeId id = g.add_with_types(Prim::Full, {}, std::move(attrs), {type}, std::move(origin));
    return g.node(id).results[0];
}

bool is_pure(const Node& n) {
    if (n.prim == Prim::ExternCall) return n.attrs.get<bool>("pure");
    return kind(n.prim) != PrimKind::Random && kind(n.prim) != PrimKind::Effect;
}

bool has_effect(const Node& n) {
    // Random prims advance eager's generator, so dropping one would change the next.
    return !is_pure(n);
}

std::vector<bool> frozen_values(const Graph& g) {
    std::vector<bool> frozen(g.values().size(), false);
    for (const Input& in : g.inputs()) frozen[in.value] = in.frozen;
    // What the graph itself writes changes at every call.
    for (const Output& o : g.outputs())
        if (o.writes_input >= 0)
            frozen[g.inputs()[static_cast<std::size_t>(o.writes_input)].value] = false;
    for (const Node& n : g.nodes()) {
        bool all = is_pure(n) && n.prim != Prim::ExternCall;
        for (ValueId v : n.operands) all = all && frozen[v];
        // A size that varies between calls is no constant.
        for (ValueId v : n.results)
            for (Expr e : g.type(v).sizes) all = all && e.is_constant();
        if (n.prim == Prim::SizeValue) all = false;
        for (ValueId v : n.results) frozen[v] = all;
    }
    return frozen;
}

std::int64_t packable_matmul_bytes(const Graph& g) {
    const std::vector<bool> frozen = frozen_values(g);
    std::vector<bool> counted(g.values().size(), false);
    std::int64_t sum = 0;
    for (const Node& n : g.nodes()) {
        if (n.prim != Prim::Matmul || !frozen[n.operands[1]] || frozen[n.operands[0]]) continue;
        if (counted[n.operands[1]]) continue;
        counted[n.operands[1]] = true;
        const Type& type = g.type(n.operands[1]);
        sum += type.numel().constant() * bytes(type.dtype);  // frozen, so of constant sizes
    }
    return sum;
}

bool same_sizes(const Sizes& a, const Sizes& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (known_eq(a[i], b[i]) != true) return false;
    return true;
}

}  // namespace ingot
