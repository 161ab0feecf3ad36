// The parser of graphs; see parse.h and the format in print.h. One pass over the text.
#include "ir/parse.h"

#include <unordered_map>

#include "ir/text.h"

namespace ingot {

std::vector<AttrSpec> attr_specs(Prim prim) {
    std::vector<AttrSpec> specs;
    std::string_view rest = info(prim).attributes;
    while (!rest.empty()) {
        std::string_view word = rest.substr(0, rest.find(' '));
        rest.remove_prefix(std::min(word.size() + 1, rest.size()));
        bool optional = word.ends_with('?');
        if (optional) word.remove_suffix(1);
        std::size_t colon = word.find(':');
        specs.push_back({word.substr(0, colon), word.substr(colon + 1), optional});
    }
    specs.push_back({"again", "bool", true});  // computed a second time: see passes/partition.h
    specs.push_back({"region", "int", true});  // of what is not kept: see passes/regions.h
    return specs;
}

namespace {

class GraphParser {
  public:
    GraphParser(std::string_view text, std::shared_ptr<ExprPool> pool)
        : in_(text, "graph"), g_(std::move(pool)) {}

    Graph parse() {
        if (in_.accept("symbols")) {
            do {
                std::string_view symbol = in_.identifier();
                g_.pool().symbol(symbol, in_.range_or_unbounded());
            } while (in_.accept(","));
        }
        in_.expect("graph");
        in_.list("(", ")", [&] { input(); });
        if (in_.accept("no")) {
            in_.expect("rounding");
            g_.round_intermediates = false;
        }
        in_.expect("{");
        for (;;) {
            if (in_.accept("return")) break;
            if (in_.accept("guard"))
                guard();
            else
                node();
        }
        if (!in_.accept("}")) {
            do output();
            while (in_.accept(","));
            in_.expect("}");
        }
        if (!in_.at_end()) in_.fail("unexpected text behind the graph");
        return std::move(g_);
    }

  private:
    Expr expression(std::initializer_list<std::string_view> stops = {}) {
        return in_.expression([&](std::string_view name) { return g_.pool().symbol(name); }, stops);
    }
    Sizes sizes(std::string_view open, std::string_view close) {
        Sizes out;
        in_.list(open, close, [&] { out.push_back(expression()); });
        return out;
    }
    Type type() {
        Type t;
        t.dtype = in_.dtype();
        t.sizes = sizes("[", "]");
        if (in_.accept("@")) {
            if (in_.accept("cuda"))
                t.device.kind = DeviceKind::Cuda;
            else
                in_.expect("cpu");
            in_.expect(":");
            t.device.index = static_cast<std::int8_t>(in_.integer());
        }
        return t;
    }
    std::string value_name() {
        in_.expect("%");
        std::size_t at = in_.position();
        std::string name;
        // Digits or a word.
        if (in_.peek_digit())
            name = std::to_string(in_.integer());
        else
            name = std::string(in_.identifier());
        if (name.empty()) in_.fail_at(at, "expected a value's name");
        return name;
    }
    ValueId use() {
        in_.skip();
        std::size_t at = in_.position();
        auto it = values_.find(value_name());
        if (it == values_.end()) in_.fail_at(at, "this value is not defined");
        return it->second;
    }
    void define(const std::string& name, ValueId v, std::size_t at) {
        if (!values_.emplace(name, v).second) in_.fail_at(at, "this value is defined twice");
    }
    Sizes strides(const Sizes& of) {
        return in_.accept("strides") ? sizes("(", ")") : contiguous_strides(of);
    }
    void input() {
        in_.skip();
        std::size_t at = in_.position();
        std::string value = value_name(), label;
        if (in_.next_is("\"")) label = in_.quoted();
        in_.expect(":");
        Type t = type();
        Sizes s = strides(t.sizes);
        bool frozen = in_.accept("frozen");
        define(value, g_.add_input(std::move(t), std::move(label), std::move(s), frozen), at);
    }
    void output() {
        ValueId v = use();
        Sizes s = strides(g_.type(v).sizes);
        std::int32_t writes = -1;
        if (in_.accept("writes")) {
            writes = static_cast<std::int32_t>(in_.integer());
            if (writes < 0 || static_cast<std::size_t>(writes) >= g_.inputs().size())
                in_.fail("there is no such input");
        }
        g_.add_output(v, std::move(s), writes);
    }
    void guard() {
        SizeGuard s;
        s.left = expression({"==", "!=", "<"});
        s.relation = in_.accept("==")   ? SizeGuard::Relation::Eq
                     : in_.accept("!=") ? SizeGuard::Relation::Ne
                     : in_.accept("<=") ? SizeGuard::Relation::Le
                                        : SizeGuard::Relation::Lt;
        if (s.relation == SizeGuard::Relation::Lt) in_.expect("<");
        s.right = expression({"\""});
        if (in_.next_is("\"")) s.reason = in_.quoted();
        g_.add_guard(std::move(s));
    }

    struct Result {
        std::string name;
        std::size_t at;
        std::optional<Type> type;
    };
    void node() {
        in_.skip();
        std::size_t start = in_.position();
        std::vector<Result> results;
        if (in_.next_is("%")) {
            do {
                in_.skip();
                std::size_t at = in_.position();
                results.push_back({value_name(), at, std::nullopt});
                if (in_.accept(":")) results.back().type = type();
            } while (in_.accept(","));
            in_.expect("=");
        }
        in_.skip();
        std::size_t at = in_.position();
        auto prim = parse_prim(in_.identifier());
        if (!prim) in_.fail_at(at, "unknown prim");
        std::vector<ValueId> operands;
        in_.list("(", ")", [&] { operands.push_back(use()); });
        Attrs attrs;
        if (in_.next_on_line("{")) in_.list("{", "}", [&] { attribute(*prim, attrs); });
        std::string origin = in_.comment().value_or("");
        NodeId id = add(*prim, std::move(operands), std::move(attrs), results, start);
        g_.node(id).origin = std::move(origin);
        if (g_.node(id).results.size() != results.size())
            in_.fail_at(start, "the prim has another number of results");
        for (std::size_t i = 0; i < results.size(); ++i)
            define(results[i].name, g_.node(id).results[i], results[i].at);
    }
    NodeId add(Prim prim, std::vector<ValueId> operands, Attrs attrs,
               const std::vector<Result>& results, std::size_t start) {
        std::vector<Type> types;
        for (const Result& r : results)
            if (r.type) types.push_back(*r.type);
        bool typed = types.size() == results.size() && !(results.empty() && types.empty());
        if (typed || info(prim).dtype_rule == DTypeRule::Custom)
            return g_.add_with_types(prim, std::move(operands), std::move(attrs), std::move(types));
        try {
            return g_.add(prim, std::move(operands), std::move(attrs));
        } catch (const InternalError& e) {
            in_.fail_at(start, e.what());
        }
    }
    void attribute(Prim prim, Attrs& attrs) {
        in_.skip();
        std::size_t at = in_.position();
        std::string_view key = in_.identifier();
        in_.expect("=");
        for (const AttrSpec& spec : attr_specs(prim)) {
            if (spec.name != key) continue;
            if (attrs.has(key)) in_.fail_at(at, "this attribute is given twice");
            attrs.set(spec.name, attribute_value(spec.type));
            return;
        }
        in_.fail_at(at, std::string(name(prim)) + " has no attribute '" + std::string(key) + "'");
    }
    AttrValue attribute_value(std::string_view type) {
        if (type == "bool") return in_.boolean();
        if (type == "int") return in_.integer();
        if (type == "float") return in_.floating();
        if (type == "size") return expression();
        if (type == "sizes") return sizes("(", ")");
        if (type == "dtype") return in_.dtype();
        if (type == "scalar") return in_.scalar();
        if (type == "text") return in_.quoted();
        if (type == "ints") {
            Ints out;
            in_.list("(", ")", [&] { out.push_back(in_.integer()); });
            return out;
        }
        check(type == "data", "the table names an unknown type of attribute");
        if (!in_.accept_prefix("0x")) in_.fail("expected bytes as 0x...");
        return std::make_shared<const std::vector<std::uint8_t>>(in_.hex_bytes());
    }

    Scanner in_;
    Graph g_;
    std::unordered_map<std::string, ValueId> values_;
};

}  // namespace

Graph parse_graph(std::string_view text, std::shared_ptr<ExprPool> pool) {
    return GraphParser(text, std::move(pool)).parse();
}

}  // namespace ingot
