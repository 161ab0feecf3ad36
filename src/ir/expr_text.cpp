// Expressions as text and back. The printer follows the canonical form, the parser rebuilds it
// through the same operators, so printing and parsing are inverses within one pool. Stands beside
// expr.cpp; used by every printer.
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
std::string operand(Expr e) {
    return needs_parentheses(e) ? "(" + to_string(e) + ")" : to_string(e);
}
std::string factor(Expr e) {
    bool plain = e.is_constant() || e.node()->kind == ExprKind::Mul;
    return plain ? to_string(e) : operand(e);
}

class Parser {
  public:
    Parser(std::string_view text, ExprPool& pool) : text_(text), pool_(pool) {}

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
        return pool_.symbol(name);
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
    ExprPool& pool_;
    std::size_t at_ = 0;
};

}  // namespace

std::string to_string(Expr e) {
    if (e.is_constant()) return std::to_string(e.constant());
    const ExprNode& n = *e.node();
    std::string out;
    switch (n.kind) {
        case ExprKind::Symbol:
            return n.symbol;
        case ExprKind::Add:
            for (std::size_t i = 0; i < n.args.size(); ++i) {
                std::int64_t c = n.coefficients[i];
                if (i == 0)
                    out += c < 0 ? "-" : "";
                else
                    out += c < 0 ? " - " : " + ";
                // The magnitude through unsigned arithmetic: the smallest int64 has no positive
                // twin.
                std::uint64_t magnitude =
                    c < 0 ? 0 - static_cast<std::uint64_t>(c) : static_cast<std::uint64_t>(c);
                if (magnitude != 1) out += std::to_string(magnitude) + "*";
                out += factor(n.args[i]);
            }
            if (n.constant > 0) out += " + " + std::to_string(n.constant);
            if (n.constant < 0)
                out += " - " + std::to_string(0 - static_cast<std::uint64_t>(n.constant));
            return out;
        case ExprKind::Mul:
            for (const Expr& a : n.args) out += (out.empty() ? "" : "*") + operand(a);
            return out;
        case ExprKind::FloorDiv:
            return operand(n.args[0]) + " // " + operand(n.args[1]);
        case ExprKind::Mod:
            return operand(n.args[0]) + " % " + operand(n.args[1]);
        case ExprKind::Min:
            return "min(" + to_string(n.args[0]) + ", " + to_string(n.args[1]) + ")";
        case ExprKind::Max:
            return "max(" + to_string(n.args[0]) + ", " + to_string(n.args[1]) + ")";
    }
    return out;
}

Expr parse_expr(std::string_view text, ExprPool& pool) { return Parser(text, pool).whole(); }

}  // namespace ingot
