// Construction and copying of graphs; see graph.h.
#include "ir/graph.h"

#include <bit>
#include <cmath>

namespace ingot {

double Scalar::to_double() const {
    if (auto* c = std::get_if<std::complex<double>>(&value)) return c->real();
    if (auto* d = std::get_if<double>(&value)) return *d;
    if (auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
    return std::get<bool>(value) ? 1.0 : 0.0;
}
std::int64_t Scalar::to_int() const {
    if (auto* i = std::get_if<std::int64_t>(&value)) return *i;
    if (auto* b = std::get_if<bool>(&value)) return *b ? 1 : 0;
    double d = to_double();
    // Out of range (or NaN) has no integer; C++ leaves the conversion undefined, so saturate.
    if (std::isnan(d)) return 0;
    if (d >= 9223372036854775807.0) return std::numeric_limits<std::int64_t>::max();
    if (d <= -9223372036854775808.0) return std::numeric_limits<std::int64_t>::min();
    return static_cast<std::int64_t>(d);
}
std::complex<double> Scalar::to_complex() const {
    if (auto* c = std::get_if<std::complex<double>>(&value)) return *c;
    return to_double();
}

namespace {
bool same_bits(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
bool same_value(const AttrValue& a, const AttrValue& b) {
    if (a.index() != b.index()) return false;
    if (auto* x = std::get_if<double>(&a)) return same_bits(*x, std::get<double>(b));
    using Data = std::shared_ptr<const std::vector<std::uint8_t>>;
    if (auto* x = std::get_if<Data>(&a)) return **x == *std::get<Data>(b);
    return a == b;
}
}  // namespace

bool operator==(const Scalar& a, const Scalar& b) {
    if (a.value.index() != b.value.index()) return false;
    if (auto* x = std::get_if<double>(&a.value)) return same_bits(*x, std::get<double>(b.value));
    if (auto* x = std::get_if<std::complex<double>>(&a.value)) {
        auto y = std::get<std::complex<double>>(b.value);
        return same_bits(x->real(), y.real()) && same_bits(x->imag(), y.imag());
    }
    return a.value == b.value;
}

const AttrValue* Attrs::find(std::string_view key) const {
    for (const Attr& a : list_)
        if (a.key == key) return &a.value;
    return nullptr;
}
void Attrs::set(std::string_view static_key, AttrValue value) {
    for (Attr& a : list_)
        if (a.key == static_key) {
            a.value = std::move(value);
            return;
        }
    list_.push_back({static_key, std::move(value)});
}
bool operator==(const Attrs& a, const Attrs& b) {
    if (a.list().size() != b.list().size()) return false;
    for (std::size_t i = 0; i < a.list().size(); ++i)
        if (a.list()[i].key != b.list()[i].key || !same_value(a.list()[i].value, b.list()[i].value))
            return false;
    return true;
}

ValueId Graph::add_input(Type type, std::string name, Sizes strides, bool frozen) {
    ValueId v = static_cast<ValueId>(values_.size());
    values_.push_back({std::move(type), kNone, static_cast<std::uint32_t>(inputs_.size())});
    inputs_.push_back({v, std::move(name), std::move(strides), frozen});
    return v;
}

void Graph::add_output(ValueId value, Sizes strides, std::int32_t writes_input) {
    check(value < values_.size(), "an output names no value");
    outputs_.push_back({value, std::move(strides), writes_input});
}

NodeId Graph::add(Prim prim, std::vector<ValueId> operands, Attrs attrs, std::string origin) {
    std::vector<Type> types;
    types.reserve(operands.size());
    for (ValueId v : operands) {
        check(v < values_.size(), "an operand names no value");
        types.push_back(values_[v].type);
    }
    std::vector<Type> results = infer_types(prim, types, attrs);
    return add_with_types(prim, std::move(operands), std::move(attrs), std::move(results),
                          std::move(origin));
}

NodeId Graph::add_with_types(Prim prim, std::vector<ValueId> operands, Attrs attrs,
                             std::vector<Type> results, std::string origin) {
    NodeId id = static_cast<NodeId>(nodes_.size());
    Node n{prim, std::move(operands), {}, std::move(attrs), std::move(origin)};
    for (std::size_t i = 0; i < results.size(); ++i) {
        n.results.push_back(static_cast<ValueId>(values_.size()));
        values_.push_back({std::move(results[i]), id, static_cast<std::uint32_t>(i)});
    }
    nodes_.push_back(std::move(n));
    return id;
}

Rewriter::Rewriter(const Graph& old)
    : old_(old), out_(old.shared_pool()), map_(old.values().size(), kNone) {
    out_.round_intermediates = old.round_intermediates;
    for (const Input& in : old.inputs())
        map_[in.value] = out_.add_input(old.type(in.value), in.name, in.strides, in.frozen);
}

void Rewriter::copy(NodeId id) {
    const Node& n = old_.node(id);
    std::vector<ValueId> operands;
    for (ValueId v : n.operands) operands.push_back((*this)(v));
    std::vector<Type> types;
    for (ValueId v : n.results) types.push_back(old_.type(v));
    NodeId fresh =
        out_.add_with_types(n.prim, std::move(operands), n.attrs, std::move(types), n.origin);
    for (std::size_t i = 0; i < n.results.size(); ++i)
        map_[n.results[i]] = out_.node(fresh).results[i];
}

ValueId Rewriter::operator()(ValueId old_value) const {
    check(map_[old_value] != kNone, "a pass uses a value it has not mapped");
    return map_[old_value];
}

Graph Rewriter::finish() {
    for (const Output& o : old_.outputs())
        out_.add_output((*this)(o.value), o.strides, o.writes_input);
    for (const SizeGuard& g : old_.guards()) out_.add_guard(g);
    return std::move(out_);
}

std::vector<int> use_counts(const Graph& graph) {
    std::vector<int> uses(graph.values().size(), 0);
    for (const Node& n : graph.nodes())
        for (ValueId v : n.operands) ++uses[v];
    for (const Output& o : graph.outputs()) ++uses[o.value];
    return uses;
}

}  // namespace ingot
