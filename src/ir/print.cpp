// The printer of graphs; see print.h. One pass over the graph.
#include "ir/print.h"

#include <algorithm>

#include "ir/text.h"

namespace ingot {

namespace {

using Data = std::shared_ptr<const std::vector<std::uint8_t>>;

std::string hex(const std::vector<std::uint8_t>& bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out = "0x";
    for (std::uint8_t b : bytes) {
        out += digits[b >> 4];
        out += digits[b & 15];
    }
    return out;
}

struct AttrPrinter {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return write_double(v); }
    std::string operator()(Expr v) const { return to_string(v); }
    std::string operator()(const Sizes& v) const { return write_sizes(v); }
    std::string operator()(const Ints& v) const {
        std::string out = "(";
        for (std::size_t i = 0; i < v.size(); ++i) out += (i ? ", " : "") + std::to_string(v[i]);
        return out + ")";
    }
    std::string operator()(DType v) const { return std::string(name(v)); }
    std::string operator()(const Scalar& v) const { return write_scalar(v); }
    std::string operator()(const std::string& v) const { return write_quoted(v); }
    std::string operator()(const Data& v) const { return hex(*v); }
};

// Every symbol of the graph, in order of creation.
std::vector<Expr> graph_symbols(const Graph& g) {
    std::vector<Expr> found;
    auto all = [&](const Sizes& sizes) {
        for (Expr e : sizes) collect_symbols(e, found);
    };
    for (const Value& v : g.values()) all(v.type.sizes);
    for (const Input& i : g.inputs()) all(i.strides);
    for (const Output& o : g.outputs()) all(o.strides);
    for (const SizeGuard& s : g.guards()) all({s.left, s.right});
    for (const Node& n : g.nodes())
        for (const Attr& a : n.attrs.list()) {
            if (auto* e = std::get_if<Expr>(&a.value)) all({*e});
            if (auto* s = std::get_if<Sizes>(&a.value)) all(*s);
        }
    std::sort(found.begin(), found.end(),
              [](Expr a, Expr b) { return a.node()->id < b.node()->id; });
    return found;
}

class GraphPrinter {
  public:
    explicit GraphPrinter(const Graph& g) : g_(g), number_(g.values().size(), kNone) {}

    std::string print() {
        symbols();
        inputs();
        for (const Node& n : g_.nodes()) node(n);
        for (const SizeGuard& s : g_.guards()) guard(s);
        outputs();
        return std::move(out_);
    }

  private:
    std::string name_of(ValueId v) const {
        return number_[v] == kNone ? "%?" + std::to_string(v) : "%" + std::to_string(number_[v]);
    }
    std::string define(ValueId v) {
        number_[v] = next_++;
        return name_of(v);
    }
    void strides(const Sizes& strides, const Sizes& sizes) {
        if (strides != contiguous_strides(sizes)) out_ += " strides " + write_sizes(strides);
    }
    void symbols() {
        std::vector<Expr> all = graph_symbols(g_);
        if (all.empty()) return;
        out_ += "symbols ";
        for (std::size_t i = 0; i < all.size(); ++i)
            out_ += (i ? ", " : "") + all[i].node()->symbol + write_range(all[i].node()->range);
        out_ += "\n";
    }
    void inputs() {
        bool many = g_.inputs().size() > 3;
        out_ += "graph(";
        for (std::size_t i = 0; i < g_.inputs().size(); ++i) {
            const Input& in = g_.inputs()[i];
            out_ += i ? "," : "";
            out_ += many ? "\n    " : i ? " " : "";
            out_ += define(in.value);
            if (!in.name.empty()) out_ += " " + write_quoted(in.name);
            out_ += ": " + to_string(g_.type(in.value));
            strides(in.strides, g_.type(in.value).sizes);
            if (in.frozen) out_ += " frozen";
        }
        out_ += g_.round_intermediates ? ") {\n" : ") no rounding {\n";
    }
    void node(const Node& n) {
        out_ += "  ";
        std::string operands;
        for (ValueId v : n.operands) operands += (operands.empty() ? "" : ", ") + name_of(v);
        for (std::size_t i = 0; i < n.results.size(); ++i)
            out_ +=
                (i ? ", " : "") + define(n.results[i]) + ": " + to_string(g_.type(n.results[i]));
        if (!n.results.empty()) out_ += " = ";
        out_ += std::string(name(n.prim)) + "(" + operands + ")";
        if (!n.attrs.list().empty()) out_ += " " + to_string(n.attrs);
        if (!n.origin.empty()) out_ += "  # " + write_comment(n.origin);
        out_ += "\n";
    }
    void guard(const SizeGuard& s) {
        constexpr std::string_view relations[] = {"==", "!=", "<", "<="};
        out_ += "  guard " + to_string(s.left) + " " +
                std::string(relations[static_cast<int>(s.relation)]) + " " + to_string(s.right) +
                " " + write_quoted(s.reason) + "\n";
    }
    void outputs() {
        out_ += "  return";
        for (std::size_t i = 0; i < g_.outputs().size(); ++i) {
            const Output& o = g_.outputs()[i];
            out_ += (i ? ", " : " ") + name_of(o.value);
            strides(o.strides, g_.type(o.value).sizes);
            if (o.writes_input >= 0) out_ += " writes " + std::to_string(o.writes_input);
        }
        out_ += "\n}\n";
    }

    const Graph& g_;
    std::vector<std::uint32_t> number_;
    std::uint32_t next_ = 0;
    std::string out_;
};

}  // namespace

std::string to_string(const Type& type) {
    std::string out = std::string(name(type.dtype)) + "[";
    for (std::size_t i = 0; i < type.sizes.size(); ++i)
        out += (i ? ", " : "") + to_string(type.sizes[i]);
    out += "]";
    if (type.device == Device{}) return out;
    return out + (type.device.kind == DeviceKind::Cpu ? "@cpu:" : "@cuda:") +
           std::to_string(type.device.index);
}

std::string to_string(const Attrs& attrs) {
    if (attrs.list().empty()) return "";
    std::string out = "{";
    for (const Attr& a : attrs.list()) {
        if (out.size() > 1) out += ", ";
        out += std::string(a.key) + "=" + std::visit(AttrPrinter{}, a.value);
    }
    return out + "}";
}

std::string to_string(const Graph& graph) { return GraphPrinter(graph).print(); }

}  // namespace ingot
