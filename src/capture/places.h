// Where a program stands, for people: its frames as file, line and function.
//
// Taken where a recording breaks or ends, outermost frame first; which of them is the user's is
// decided where it is told (python/ingot/_places.py). Costs a string a frame, at breaks only.
#pragma once
#include <Python.h>

#include <string>
#include <vector>

#include "capture/interpreter/frame.h"

namespace ingot::capture {

struct CodePlace {
    std::string file;
    int line = 0;
    std::string function;
    bool in_loop = false;  // what happens there may happen many times in one call

    /// "file:line in function"
    std::string text() const;
};

CodePlace place_of_frame(Frame frame);
/// The frames of the session from the outermost to this one.
std::vector<CodePlace> places_of(Frame innermost);
/// As the package takes them: a list of (file, line, function, in_loop), or nullptr with the error
/// set.
PyObject* as_python(const std::vector<CodePlace>& places);

}  // namespace ingot::capture
