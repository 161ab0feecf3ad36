// Graphs as text; parse.h reads it back. The two are exact inverses: tests, bug reports, golden
// files and the dumps of a compilation are this text.
//
//     symbols s0 in [1, 4096]
//     graph(%0 "x": f32[8, s0], %1 "w": f32[16, s0] strides (1, 16) frozen) {
//       %2: f32[s0, 16] = permute(%1) {dims=(1, 0)}
//       %3: f32[8, 16] = matmul(%0, %2)  # aten::linear, model.py:12
//       guard s0 <= 4096 "the sequence fits"
//       return %3, %3 strides (1, 8) writes 0
//     }
//
// Values are numbered in the order of the text. Strides are left out where they are row-major, the
// device where it is cpu:0; `no rounding` stands before `{` where round_intermediates is off.
#pragma once
#include <string>

#include "ir/graph.h"

namespace ingot {

std::string to_string(const Graph& graph);
/// `f32[8, s0]`, with `@cuda:0` behind it where the device is not the default.
std::string to_string(const Type& type);
/// `{dims=(1, 0)}`; nothing without attributes.
std::string to_string(const Attrs& attrs);

}  // namespace ingot
