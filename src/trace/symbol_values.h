// The numbers that symbols stand for at one call, in the form in which expressions are evaluated.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "ir/expr.h"

namespace ingot::trace {

/// What `evaluate` asks for a symbol's number: `values` holds that of each of `symbols`, which must
/// be among them. Both must outlive it.
inline auto values_of(std::span<const Expr> symbols, std::span<const std::int64_t> values) {
    return [symbols, values](Expr symbol) {
        const auto at = std::ranges::find(symbols, symbol) - symbols.begin();
        return values[static_cast<std::size_t>(at)];
    };
}

}  // namespace ingot::trace
