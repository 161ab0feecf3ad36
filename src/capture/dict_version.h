// CPython's count of changes to a dict, by which guards know one that nobody has touched. One load;
// used where guards are pinned and checked.
#pragma once

#include <Python.h>

#include <cstdint>

namespace ingot::capture {

/// The dict's version. CPython 3.12 still keeps the field and warns of its use.
inline std::uint64_t version_of(const PyObject* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return reinterpret_cast<const PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

}  // namespace ingot::capture
