// The lexical level that all text forms share (graphs here, kernels in src/schedule): exact
// numbers, quoted strings, symbol declarations, and a scanner that knows its line and column.
//
// Every write_* has a scanner function that reads the identical value back; doubles keep every bit.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace ingot {

/// The shortest text that reads back as the same bits; always with a '.', an exponent, inf or nan.
std::string write_double(double v);
/// Bools as true and false, doubles as by write_double, complex numbers as complex(re, im).
std::string write_scalar(const Scalar& s);
/// In double quotes, with control characters, quotes and backslashes escaped.
std::string write_quoted(std::string_view text);
/// " in [1, 64]", or nothing for an unbounded range.
std::string write_range(Range range);
/// `(a, b)`.
std::string write_sizes(const Sizes& sizes, const SymbolNames* names = nullptr);

/// Reads text from left to right. Every failure is a UserError with line and column.
class Scanner {
  public:
    explicit Scanner(std::string_view text, std::string_view what) : text_(text), what_(what) {}

    /// Skips white space, and comments where `comments` is set.
    void skip(bool comments = true);
    bool at_end();
    /// Takes `token` if it comes next. A token that is a word must not go on in the text.
    bool accept(std::string_view token);
    void expect(std::string_view token);
    /// Whether `token` comes next; takes only white space.
    bool next_is(std::string_view token) {
        skip();
        return text_.substr(at_, token.size()) == token;
    }
    /// Whether `token` comes next on this line.
    bool next_on_line(std::string_view token) {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
        return text_.substr(at_, token.size()) == token;
    }
    /// As accept, but the text may go on with a letter or digit.
    bool accept_prefix(std::string_view token) {
        if (!next_is(token)) return false;
        at_ += token.size();
        return true;
    }
    bool peek_digit() const { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }
    /// Letters, digits, '_' and '.', starting with no digit.
    std::string_view identifier();
    std::int64_t integer();
    double floating();
    Scalar scalar();
    bool boolean();
    std::string quoted();
    /// `[lo, hi]`.
    Range range();
    /// What write_range wrote.
    Range range_or_unbounded() { return accept("in") ? range() : Range{}; }
    DType dtype();
    /// The text of an expression: up to a ',' or closing bracket at depth 0, or one of `stops`
    /// (words or operators standing at depth 0).
    Expr expression(const std::function<Expr(std::string_view)>& symbol,
                    std::initializer_list<std::string_view> stops = {});
    /// A parenthesised list: `item` is called for each.
    template <class Item>
    void list(std::string_view open, std::string_view close, const Item& item) {
        expect(open);
        if (accept(close)) return;
        do item();
        while (accept(","));
        expect(close);
    }
    /// The rest of the line behind '#' if a comment comes next on this line, unescaped.
    std::optional<std::string> comment();
    /// A run of hexadecimal digits as bytes.
    std::vector<std::uint8_t> hex_bytes();

    [[noreturn]] void fail(const std::string& message) const { fail_at(at_, message); }
    [[noreturn]] void fail_at(std::size_t position, const std::string& message) const;
    std::size_t position() const { return at_; }

  private:
    std::string_view text_;
    std::string_view what_;
    std::size_t at_ = 0;
};

/// A comment's text on one line: backslashes and newlines escaped.
std::string write_comment(std::string_view text);

}  // namespace ingot
