// Integer expressions in the syntax of a target language. C and Python differ in how they divide,
// and Triton's operators truncate as C's do; the printer hides that. Shared by the text generators.
#pragma once
#include <map>
#include <string>

#include "ir/expr.h"

namespace ingot {

/// Where operands may be negative, C's `/` and `%` differ from the floored ones; these functions of
/// the prelude are called there, and the plain operators elsewhere.
struct ExprSyntax {
    std::string divide = "/";
    std::string floor_div = "floor_div";
    std::string floor_mod = "floor_mod";
    std::string min = "std::min<int64_t>";
    std::string max = "std::max<int64_t>";
    std::string literal_suffix;
    /// Target names of symbols; a symbol that is not listed prints under its own name.
    std::map<std::string, std::string> names;
};

std::string print_expr(Expr e, const ExprSyntax& syntax);

/// A symbol's name with characters that identifiers cannot hold replaced.
std::string identifier(std::string_view symbol);

}  // namespace ingot
