// Loop nests as C++ with OpenMP: for people to read, and as an independent second implementation
// that tests compile with the system's compiler and compare with the machine code. Reads
// schedule/nest.h only.
#pragma once
#include <string>

#include "schedule/nest.h"

namespace ingot {

/// One self-contained translation unit (the prelude included). It defines, for the kernel named
/// `symbol`,
///   extern "C" void symbol(void* const* buffers, const int64_t* sizes, int64_t* error)
/// which carries out all work. Throws NotSupported for a prim without a C++ form.
std::string to_cpp(const Kernel& kernel, const std::string& symbol);

/// The kernel alone, without prelude and entry point: what a person wants to read.
std::string to_cpp_body(const Kernel& kernel, const std::string& symbol);

}  // namespace ingot
