// Triton as a compiler of kernels' text, handed to the core by the Python package: `ingot._triton`
// finds it in the user's environment and runs it.
#pragma once
#include <memory>

#include "runtime/text_compiler.h"

namespace ingot::bindings {

/// Costs nothing before it is used; takes Python's lock then.
std::shared_ptr<const runtime::TextCompiler> triton_compiler();

}  // namespace ingot::bindings
