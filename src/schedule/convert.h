// A change of type where one is needed; shared by the files that legalise.
#pragma once
#include "ir/graph.h"

namespace ingot::sched {

/// `v` in the type `to`: itself if it has it.
inline ValueId convert(Graph& g, ValueId v, DType to) {
    if (g.type(v).dtype == to) return v;
    return g.emit(Prim::Convert, {v}, {{"dtype", to}});
}

}  // namespace ingot::sched
