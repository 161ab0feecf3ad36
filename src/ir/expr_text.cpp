// Expressions as text and back. The printer follows the canonical form, the parser rebuilds it
// through the same operators, so printing and parsing are inverses within one pool. Stands beside
// expr.cpp; used by every printer.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "ir/error.h"
#include "ir/expr.h"

namespace ingot {

namespace {

bool needs_parentheses(Expr e) {
    if (e.is_constant()) return e.constant() < 0;
    ExprKind k = e.node()->kind;
    return k == ExprKind::Add || k == ExprKind::FloorDiv || k == ExprKind::Mod ||
           k == ExprKind::Mul;
}

// Prints with given names; sums and products in the order of their parts' text.
class Printer {
  public:
    explicit Printer(const SymbolNames* names) : names_(names) {}

    std::string print(Expr e) const {
        if (e.is_constant()) return std::to_string(e.constant());
        const ExprNode& n = *e.node();
        switch (n.kind) {
            case ExprKind::Symbol:
                return names_ ? (*names_)(e) : n.symbol;
            case ExprKind::Add:
                return sum(n);
            case ExprKind::Mul:
                return product(n);
            case ExprKind::FloorDiv:
                return operand(n.args[0]) + " // " + operand(n.args[1]);
            case ExprKind::Mod:
                return operand(n.args[0]) + " % " + operand(n.args[1]);
            case ExprKind::Min:
            case ExprKind::Max: {
                std::string a = print(n.args[0]), b = print(n.args[1]);
                if (b < a) std::swap(a, b);
                return (n.kind == ExprKind::Min ? "min(" : "max(") + a + ", " + b + ")";
            }
        }
        return {};
    }

  private:
    std::string operand(Expr e) const {
        return needs_parentheses(e) ? "(" + print(e) + ")" : print(e);
    }
    std::string factor(Expr e) const {
        bool plain = e.is_constant() || e.node()->kind == ExprKind::Mul;
        return plain ? print(e) : operand(e);
    }
    std::string product(const ExprNode& n) const {
        std::vector<std::string> parts;
        for (const Expr& a : n.args) parts.push_back(operand(a));
        std::sort(parts.begin(), parts.end());
        std::string out;
        for (const std::string& p : parts) out += (out.empty() ? "" : "*") + p;
        return out;
    }
    std::string sum(const ExprNode& n) const {
        std::vector<std::pair<std::string, std::int64_t>> terms;
        for (std::size_t i = 0; i < n.args.size(); ++i)
            terms.emplace_back(factor(n.args[i]), n.coefficients[i]);
        std::sort(terms.begin(), terms.end());
        std::string out;
        for (auto& [text, c] : terms) {
            if (out.empty())
                out += c < 0 ? "-" : "";
            else
                out += c < 0 ? " - " : " + ";
            if (magnitude(c) != 1) out += std::to_string(magnitude(c)) + "*";
            out += text;
        }
        if (n.constant > 0) out += " + " + std::to_string(n.constant);
        if (n.constant < 0) out += " - " + std::to_string(magnitude(n.constant));
        return out;
    }
    // Through unsigned arithmetic: the smallest int64 has no positive twin.
    static std::uint64_t magnitude(std::int64_t c) {
        return c < 0 ? 0 - static_cast<std::uint64_t>(c) : static_cast<std::uint64_t>(c);
    }

    const SymbolNames* names_;
};

class Parser {
  public:
    Parser(std::string_view text, std::function<Expr(std::string_view)> symbol)
        : text_(text), symbol_(std::move(symbol)) {}

    Expr whole() {
        Expr e = sum();
        skip();
        if (at_ != text_.size()) fail("unexpected text");
        return e;
    }

  private:
    Expr sum() {
        Expr e = product();
        for (;;) {
            if (accept("+"))
                e = e + product();
            else if (accept("-"))
                e = e - product();
            else
                return e;
        }
    }
    Expr product() {
        Expr e = atom();
        for (;;) {
            if (accept("//"))
                e = floor_div(e, atom());
            else if (accept("%"))
                e = mod(e, atom());
            else if (accept("*"))
                e = e * atom();
            else
                return e;
        }
    }
    Expr atom() {
        skip();
        if (accept("(")) {
            Expr e = sum();
            expect(")");
            return e;
        }
        if (accept("-")) return -atom();
        if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])))
            return number();
        std::string name = identifier();
        if ((name == "min" || name == "max") && accept("(")) {
            Expr a = sum();
            expect(",");
            Expr b = sum();
            expect(")");
            return name == "min" ? min(a, b) : max(a, b);
        }
        return symbol_(name);
    }
    Expr number() {
        std::int64_t v = 0;
        auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), v);
        if (error != std::errc()) fail("number out of range");
        at_ = static_cast<std::size_t>(end - text_.data());
        return v;
    }
    std::string identifier() {
        std::size_t start = at_;
        while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                      text_[at_] == '_' || text_[at_] == '.'))
            ++at_;
        if (start == at_) fail("expected a number, a symbol or '('");
        return std::string(text_.substr(start, at_ - start));
    }
    void skip() {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    }
    bool accept(std::string_view token) {
        skip();
        if (text_.substr(at_, token.size()) != token) return false;
        at_ += token.size();
        return true;
    }
    void expect(std::string_view token) {
        if (!accept(token)) fail("expected '" + std::string(token) + "'");
    }
    [[noreturn]] void fail(const std::string& what) const {
        throw UserError("size expression '" + std::string(text_) + "', column " +
                        std::to_string(at_ + 1) + ": " + what);
    }

    std::string_view text_;
    std::function<Expr(std::string_view)> symbol_;
    std::size_t at_ = 0;
};

}  // namespace

std::string to_string(Expr e) { return Printer(nullptr).print(e); }
std::string to_string(Expr e, const SymbolNames& names) { return Printer(&names).print(e); }

Expr parse_expr(std::string_view text, ExprPool& pool) {
    return Parser(text, [&](std::string_view name) { return pool.symbol(name); }).whole();
}
Expr parse_expr(std::string_view text, const std::function<Expr(std::string_view)>& symbol) {
    return Parser(text, symbol).whole();
}

}  // namespace ingot
