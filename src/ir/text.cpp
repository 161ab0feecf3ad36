// Exact numbers, strings and the scanner; see text.h.
#include "ir/text.h"

#include <bit>
#include <charconv>
#include <cmath>

namespace ingot {

namespace {

constexpr std::uint64_t kQuietNan = 0x7ff8000000000000ull;
constexpr std::uint64_t kSignBit = 0x8000000000000000ull;

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
constexpr std::string_view kHex = "0123456789abcdef";

std::string escape(std::string_view text, bool quotes) {
    std::string out;
    for (char c : text) {
        auto u = static_cast<unsigned char>(c);
        if (c == '\\' || (quotes && c == '"'))
            out += std::string("\\") + c;
        else if (c == '\n')
            out += "\\n";
        else if (u < 0x20 || u == 0x7f)
            out += std::string("\\x") + kHex[u >> 4] + kHex[u & 15];
        else
            out += c;
    }
    return out;
}

std::string bound(std::int64_t v) {
    return v == Range::kMin ? "-inf" : v == Range::kMax ? "inf" : std::to_string(v);
}

}  // namespace

std::string write_double(double v) {
    auto bits = std::bit_cast<std::uint64_t>(v);
    if (std::isnan(v)) {
        std::string sign = bits & kSignBit ? "-" : "";
        if ((bits & ~kSignBit) == kQuietNan) return sign + "nan";
        char digits[20];
        auto end = std::to_chars(digits, digits + 20, bits & 0xfffffffffffffull, 16).ptr;
        return sign + "nan(0x" + std::string(digits, end) + ")";
    }
    char buffer[40];
    std::string out(buffer, std::to_chars(buffer, buffer + 40, v).ptr);
    if (out.find_first_not_of("-0123456789") == std::string::npos) out += ".0";
    return out;
}

std::string write_scalar(const Scalar& s) {
    if (auto* b = std::get_if<bool>(&s.value)) return *b ? "true" : "false";
    if (auto* i = std::get_if<std::int64_t>(&s.value)) return std::to_string(*i);
    if (auto* d = std::get_if<double>(&s.value)) return write_double(*d);
    auto c = std::get<std::complex<double>>(s.value);
    return "complex(" + write_double(c.real()) + ", " + write_double(c.imag()) + ")";
}

std::string write_quoted(std::string_view text) { return "\"" + escape(text, true) + "\""; }
std::string write_comment(std::string_view text) { return escape(text, false); }

std::string write_range(Range range) {
    if (range == Range{}) return "";
    return " in [" + bound(range.lo) + ", " + bound(range.hi) + "]";
}

std::string write_sizes(const Sizes& sizes, const SymbolNames* names) {
    std::string out = "(";
    for (std::size_t i = 0; i < sizes.size(); ++i)
        out += (i ? ", " : "") + (names ? to_string(sizes[i], *names) : to_string(sizes[i]));
    return out + ")";
}

void Scanner::skip(bool comments) {
    while (at_ < text_.size()) {
        if (is_space(text_[at_]))
            ++at_;
        else if (comments && text_[at_] == '#')
            while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        else
            return;
    }
}

bool Scanner::at_end() {
    skip();
    return at_ == text_.size();
}

bool Scanner::accept(std::string_view token) {
    skip();
    if (text_.substr(at_, token.size()) != token) return false;
    std::size_t end = at_ + token.size();
    if (is_word(token.back()) && end < text_.size() && is_word(text_[end])) return false;
    at_ = end;
    return true;
}

void Scanner::expect(std::string_view token) {
    if (!accept(token)) fail("expected '" + std::string(token) + "'");
}

std::string_view Scanner::identifier() {
    skip();
    std::size_t start = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (start == at_ || is_digit(text_[start])) fail_at(start, "expected a name");
    return text_.substr(start, at_ - start);
}

std::int64_t Scanner::integer() {
    skip();
    std::int64_t v = 0;
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), v);
    if (error != std::errc()) fail("expected an integer of 64 bits");
    at_ = static_cast<std::size_t>(end - text_.data());
    return v;
}

double Scanner::floating() {
    skip();
    std::size_t start = at_;
    bool negative = at_ < text_.size() && text_[at_] == '-';
    if (negative) ++at_;
    std::uint64_t sign = negative ? kSignBit : 0;
    if (accept("inf")) return negative ? -HUGE_VAL : HUGE_VAL;
    if (accept("nan")) {
        std::uint64_t payload = 0x8000000000000ull;
        if (at_ < text_.size() && text_[at_] == '(') {
            expect("(");
            if (text_.substr(at_, 2) != "0x") fail("expected '0x'");
            at_ += 2;
            auto [end, e] =
                std::from_chars(text_.data() + at_, text_.data() + text_.size(), payload, 16);
            if (e != std::errc() || payload == 0 || payload >> 52) fail("expected a NaN's payload");
            at_ = static_cast<std::size_t>(end - text_.data());
            expect(")");
        }
        return std::bit_cast<double>(sign | 0x7ff0000000000000ull | payload);
    }
    at_ = start;
    double v = 0;
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), v);
    if (error != std::errc()) fail("expected a number");
    at_ = static_cast<std::size_t>(end - text_.data());
    return v;
}

Scalar Scanner::scalar() {
    if (accept("true")) return true;
    if (accept("false")) return false;
    if (accept("complex")) {
        expect("(");
        double re = floating();
        expect(",");
        double im = floating();
        expect(")");
        return std::complex<double>(re, im);
    }
    skip();
    std::size_t end = at_;
    if (end < text_.size() && text_[end] == '-') ++end;
    while (end < text_.size() && is_digit(text_[end])) ++end;
    bool whole =
        end > at_ && is_digit(text_[end - 1]) && (end == text_.size() || !is_word(text_[end]));
    if (whole) return integer();
    return floating();
}

bool Scanner::boolean() {
    if (accept("true")) return true;
    if (accept("false")) return false;
    fail("expected true or false");
}

std::string Scanner::quoted() {
    expect("\"");
    std::string out;
    for (;;) {
        if (at_ == text_.size() || text_[at_] == '\n') fail("the string does not end");
        char c = text_[at_++];
        if (c == '"') return out;
        if (c != '\\') {
            out += c;
            continue;
        }
        char e = at_ < text_.size() ? text_[at_++] : '\0';
        if (e == 'n') {
            out += '\n';
        } else if (e == 'x' && at_ + 2 <= text_.size()) {
            auto high = kHex.find(text_[at_]), low = kHex.find(text_[at_ + 1]);
            if (high == kHex.npos || low == kHex.npos) fail("expected two hexadecimal digits");
            out += static_cast<char>(high * 16 + low);
            at_ += 2;
        } else if (e == '\\' || e == '"') {
            out += e;
        } else {
            fail("unknown escape");
        }
    }
}

Range Scanner::range() {
    Range r;
    expect("[");
    if (!accept("-inf")) r.lo = integer();
    expect(",");
    if (!accept("inf")) r.hi = integer();
    expect("]");
    return r;
}

DType Scanner::dtype() {
    skip();
    std::size_t start = at_;
    auto t = parse_dtype(identifier());
    if (!t) fail_at(start, "unknown element type");
    return *t;
}

Expr Scanner::expression(const std::function<Expr(std::string_view)>& symbol,
                         std::initializer_list<std::string_view> stops) {
    skip();
    std::size_t start = at_;
    int depth = 0;
    auto stops_here = [&] {
        for (std::string_view s : stops) {
            if (text_.substr(at_, s.size()) != s) continue;
            std::size_t end = at_ + s.size();
            bool word = is_word(s[0]);
            if (!word) return true;
            if (at_ > 0 && is_word(text_[at_ - 1])) continue;
            if (end == text_.size() || !is_word(text_[end])) return true;
        }
        return false;
    };
    for (; at_ < text_.size(); ++at_) {
        char c = text_[at_];
        if (c == '\n' || c == '#') break;
        if (depth == 0 && (c == ',' || c == ')' || c == ']' || c == '}' || stops_here())) break;
        if (c == '(') ++depth;
        if (c == ')') --depth;
    }
    std::string_view body = text_.substr(start, at_ - start);
    while (!body.empty() && is_space(body.back())) body.remove_suffix(1);
    try {
        return parse_expr(body, symbol);
    } catch (const UserError& e) {
        fail_at(start, e.what());
    }
}

std::optional<std::string> Scanner::comment() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    if (at_ == text_.size() || text_[at_] != '#') return std::nullopt;
    ++at_;
    if (at_ < text_.size() && text_[at_] == ' ') ++at_;
    std::string out;
    for (; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
        if (text_[at_] != '\\' || at_ + 1 >= text_.size()) {
            out += text_[at_];
            continue;
        }
        char e = text_[++at_];
        if (e == 'x' && at_ + 2 < text_.size() && kHex.find(text_[at_ + 1]) != kHex.npos &&
            kHex.find(text_[at_ + 2]) != kHex.npos) {
            out += static_cast<char>(kHex.find(text_[at_ + 1]) * 16 + kHex.find(text_[at_ + 2]));
            at_ += 2;
        } else {
            out += e == 'n' ? '\n' : e;
        }
    }
    return out;
}

std::vector<std::uint8_t> Scanner::hex_bytes() {
    skip();
    std::vector<std::uint8_t> out;
    while (at_ < text_.size() && kHex.find(text_[at_]) != kHex.npos) {
        if (at_ + 1 >= text_.size() || kHex.find(text_[at_ + 1]) == kHex.npos)
            fail("expected two hexadecimal digits a byte");
        out.push_back(
            static_cast<std::uint8_t>(kHex.find(text_[at_]) * 16 + kHex.find(text_[at_ + 1])));
        at_ += 2;
    }
    return out;
}

void Scanner::fail_at(std::size_t position, const std::string& message) const {
    std::size_t line = 1, column = 1;
    for (std::size_t i = 0; i < position && i < text_.size(); ++i) {
        column = text_[i] == '\n' ? 1 : column + 1;
        line += text_[i] == '\n';
    }
    throw UserError(std::string(what_) + ", line " + std::to_string(line) + ", column " +
                    std::to_string(column) + ": " + message);
}

}  // namespace ingot
