// Indices of which eager takes none that counts from the end.
#pragma once
#include "trace/lower/emitter.h"

namespace ingot::trace {

/// `index` (of i64) with numbers that no dim has in place of negative ones: `take` and `put` count
/// those from the end, and eager raises.
inline ValueId without_negative(Emitter& e, ValueId index) {
    return e.select(e.compare(Prim::Lt, index, 0), e.number(index, 0x1p62), index);
}

}  // namespace ingot::trace
