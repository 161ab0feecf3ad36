// Internal to the guards: values as the sentences about them show them.
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::capture {

/// A value in at most 60 characters; objects by their type.
std::string text_of_value(PyObject* object);
std::string text_of_sizes(const std::vector<std::int64_t>& sizes);

}  // namespace ingot::capture
