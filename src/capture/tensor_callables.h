// What the methods and attributes of tensors need: their data, or what a promise has.
//
// Beside the table of C callables (callables.h), which asks it about everything of a tensor's
// class.
#pragma once
#include <string_view>

namespace ingot::capture {

/// A method of tensors, or a function over them, that looks at data or memory past the dispatcher,
/// or changes what a recording takes as given.
bool is_data_function(std::string_view name);

}  // namespace ingot::capture
