#include "codegen/text/expr_printer.h"

#include <cctype>

namespace ingot {

std::string identifier(std::string_view symbol) {
    std::string out(symbol);
    for (char& c : out)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return out;
}

namespace {

std::string parenthesised(Expr e, const ExprSyntax& s) {
    std::string text = print_expr(e, s);
    bool atom = e.is_constant() ? e.constant() >= 0 : e.is_symbol();
    return atom ? text : "(" + text + ")";
}

std::string call(const std::string& f, const ExprNode& n, const ExprSyntax& s) {
    return f + "(" + print_expr(n.args[0], s) + ", " + print_expr(n.args[1], s) + ")";
}

}  // namespace

std::string print_expr(Expr e, const ExprSyntax& s) {
    if (e.is_constant()) return std::to_string(e.constant()) + s.literal_suffix;
    const ExprNode& n = *e.node();
    switch (n.kind) {
        case ExprKind::Symbol: {
            auto it = s.names.find(n.symbol);
            return it != s.names.end() ? it->second : identifier(n.symbol);
        }
        case ExprKind::Add: {
            std::string out;
            for (std::size_t i = 0; i < n.args.size(); ++i) {
                std::int64_t c = n.coefficients[i];
                std::string term = parenthesised(n.args[i], s);
                if (c != 1)
                    term = (c < 0 ? "(" : "") + std::to_string(c) + s.literal_suffix +
                           (c < 0 ? ")" : "") + " * " + term;
                out += (i == 0 ? "" : " + ") + term;
            }
            if (n.constant > 0) out += " + " + std::to_string(n.constant) + s.literal_suffix;
            if (n.constant < 0) out += " - " + std::to_string(-n.constant) + s.literal_suffix;
            return out;
        }
        case ExprKind::Mul: {
            std::string out;
            for (const Expr& a : n.args) out += (out.empty() ? "" : " * ") + parenthesised(a, s);
            return out;
        }
        case ExprKind::FloorDiv:
        case ExprKind::Mod: {
            bool div = n.kind == ExprKind::FloorDiv;
            if (n.args[0].range().lo >= 0 && n.args[1].range().lo >= 0)
                return parenthesised(n.args[0], s) + (div ? " " + s.divide + " " : " % ") +
                       parenthesised(n.args[1], s);
            return call(div ? s.floor_div : s.floor_mod, n, s);
        }
        case ExprKind::Min:
            return call(s.min, n, s);
        case ExprKind::Max:
            return call(s.max, n, s);
    }
    return {};
}

}  // namespace ingot
