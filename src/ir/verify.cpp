// The verifier; see verify.h.
#include "ir/verify.h"

#include "ir/parse.h"
#include "ir/print.h"

namespace ingot {

namespace {

// Prims that are legal only from or up to a level; all others are legal everywhere.
struct Legality {
    Prim prim;
    Level first, last;
};
constexpr Legality kLegality[] = {
    {Prim::PackedMatmul, Level::Packed, Level::Packed},
    {Prim::PackedConv, Level::Packed, Level::Packed},
};

[[noreturn]] void fail(const Graph& g, NodeId id, const std::string& what) {
    const Node& n = g.node(id);
    throw InternalError("node " + std::to_string(id) + ", " + std::string(name(n.prim)) + " " +
                        to_string(n.attrs) + ": " + what);
}

bool has_type(const AttrValue& v, std::string_view type) {
    if (type == "bool") return std::holds_alternative<bool>(v);
    if (type == "int") return std::holds_alternative<std::int64_t>(v);
    if (type == "float") return std::holds_alternative<double>(v);
    if (type == "size") return std::holds_alternative<Expr>(v);
    if (type == "sizes") return std::holds_alternative<Sizes>(v);
    if (type == "ints") return std::holds_alternative<Ints>(v);
    if (type == "dtype") return std::holds_alternative<DType>(v);
    if (type == "scalar") return std::holds_alternative<Scalar>(v);
    if (type == "text") return std::holds_alternative<std::string>(v);
    using Data = std::shared_ptr<const std::vector<std::uint8_t>>;
    auto* data = std::get_if<Data>(&v);
    return type == "data" && data != nullptr && *data != nullptr;
}

void check_attrs(const Graph& g, NodeId id) {
    const Node& n = g.node(id);
    std::size_t found = 0;
    for (const AttrSpec& spec : attr_specs(n.prim)) {
        const AttrValue* value = nullptr;
        for (const Attr& a : n.attrs.list())
            if (a.key == spec.name) value = &a.value;
        if (value == nullptr) {
            if (!spec.optional) fail(g, id, "has no attribute " + std::string(spec.name));
            continue;
        }
        ++found;
        if (!has_type(*value, spec.type))
            fail(g, id,
                 "attribute " + std::string(spec.name) + " is not of type " +
                     std::string(spec.type));
    }
    if (found != n.attrs.list().size()) fail(g, id, "has an attribute its prim does not take");
}

void check_types(const Graph& g, NodeId id) {
    const Node& n = g.node(id);
    if (info(n.prim).dtype_rule == DTypeRule::Custom) return;
    std::vector<Type> operands;
    for (ValueId v : n.operands) operands.push_back(g.type(v));
    std::vector<Type> want = infer_types(n.prim, operands, n.attrs);
    if (want.size() != n.results.size()) fail(g, id, "has another number of results");
    for (std::size_t i = 0; i < want.size(); ++i) {
        const Type& have = g.type(n.results[i]);
        // Creation prims have no operand to take the device from.
        bool same = have.dtype == want[i].dtype && have.rank() == want[i].rank() &&
                    (n.operands.empty() || have.device == want[i].device);
        for (int d = 0; same && d < have.rank(); ++d)
            same = known_eq(have.sizes[d], want[i].sizes[d]) != false;
        if (!same)
            fail(g, id,
                 "result " + std::to_string(i) + " is " + to_string(have) + ", not " +
                     to_string(want[i]));
    }
}

}  // namespace

bool is_legal(Prim prim, Level level) {
    for (const Legality& l : kLegality)
        if (l.prim == prim) return l.first <= level && level <= l.last;
    return true;
}

void verify(const Graph& g, Level level) {
    std::vector<bool> defined(g.values().size(), false);
    for (std::size_t i = 0; i < g.inputs().size(); ++i) {
        const Input& in = g.inputs()[i];
        check(in.value < g.values().size() && g.values()[in.value].producer == kNone,
              "input " + std::to_string(i) + " is no input value");
        check(in.strides.size() == g.type(in.value).sizes.size(),
              "input " + std::to_string(i) + " has strides of another rank");
        defined[in.value] = true;
    }
    for (NodeId id = 0; id < g.nodes().size(); ++id) {
        const Node& n = g.node(id);
        if (!is_legal(n.prim, level)) fail(g, id, "is not legal at this level");
        for (ValueId v : n.operands)
            if (v >= defined.size() || !defined[v]) fail(g, id, "uses a value before it is made");
        check_attrs(g, id);
        check_types(g, id);
        for (std::size_t i = 0; i < n.results.size(); ++i) {
            ValueId v = n.results[i];
            if (v >= defined.size() || defined[v] || g.values()[v].producer != id ||
                g.values()[v].position != i)
                fail(g, id, "makes a value that is not its own");
            defined[v] = true;
        }
    }
    std::vector<bool> written(g.inputs().size(), false);
    for (const Output& o : g.outputs()) {
        check(o.value < defined.size() && defined[o.value], "an output is not defined");
        check(o.strides.size() == g.type(o.value).sizes.size(),
              "an output has strides of another rank");
        if (o.writes_input < 0) continue;
        auto i = static_cast<std::size_t>(o.writes_input);
        check(i < written.size(), "an output writes an input that is not there");
        check(!written[i], "two outputs write one input");
        check(g.type(g.inputs()[i].value).dtype == g.type(o.value).dtype,
              "an output writes an input of another type");
        written[i] = true;
    }
}

}  // namespace ingot
