// Whether the relation of a size guard holds between two numbers; asked wherever programs are
// chosen by the sizes of a call.
#pragma once
#include <cstdint>

#include "ir/graph.h"

namespace ingot {

constexpr bool holds(SizeGuard::Relation relation, std::int64_t left, std::int64_t right) {
    using Relation = SizeGuard::Relation;
    switch (relation) {
        case Relation::Eq:
            return left == right;
        case Relation::Ne:
            return left != right;
        case Relation::Lt:
            return left < right;
        case Relation::Le:
            break;
    }
    return left <= right;
}

}  // namespace ingot
