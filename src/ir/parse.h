// Reads the text form of graphs (print.h).
//
// Besides what the printer writes, it accepts: node results without types (`%2 = add(%0, %1)`,
// inferred), any names behind '%', strides left out (row-major), comments on lines of their own.
#pragma once
#include <memory>
#include <string_view>

#include "ir/graph.h"

namespace ingot {

/// Throws UserError with line and column on bad text. Symbols that `pool` has already keep their
/// ranges.
Graph parse_graph(std::string_view text,
                  std::shared_ptr<ExprPool> pool = std::make_shared<ExprPool>());

/// The attributes a prim takes, by the table: name, type and whether it may be left out.
struct AttrSpec {
    std::string_view name;  // static storage
    std::string_view type;
    bool optional;
};
std::vector<AttrSpec> attr_specs(Prim prim);

}  // namespace ingot
