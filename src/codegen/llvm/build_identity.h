// Which build of this library is running: a part of the disk cache's keys, so that a changed code
// generator never meets the machine code of an older one, without anybody having to count versions.
// Costs some microseconds.
#pragma once
#include <string>

namespace ingot::codegen {

/// The linker's build id of the shared library (or program) that holds this code; where it has
/// none, the file's path, size and time of change.
std::string build_identity();

}  // namespace ingot::codegen
