// Which operators of the host never fail by their data. Of such a call nobody needs to know whether
// it was made, and what is written before it needs no copy to go back to. By name, as calls have
// one; a few comparisons of text each.
#pragma once
#include <string_view>

namespace ingot {

/// Whether the operator's kernels compute whatever the numbers are: sizes and types alone decide
/// whether it raises, and did so while recording. `callee`: as in an extern call.
bool never_fails(std::string_view callee);

}  // namespace ingot
