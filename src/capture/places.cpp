// See places.h.
#include "capture/places.h"

#include <algorithm>

#include "capture/ref.h"

namespace ingot::capture {

std::string CodePlace::text() const {
    return file + ":" + std::to_string(line) + " in " + function;
}

CodePlace place_of_frame(Frame frame) {
    PyCodeObject* code = frame.code();
    return {PyUnicode_AsUTF8(code->co_filename), frame.line(), PyUnicode_AsUTF8(code->co_qualname),
            frame.in_loop()};
}

std::vector<CodePlace> places_of(Frame innermost) {
    std::vector<CodePlace> places;
    for (std::optional<Frame> f = innermost; f; f = f->caller())
        places.push_back(place_of_frame(*f));
    std::ranges::reverse(places);
    return places;
}

PyObject* as_python(const std::vector<CodePlace>& places) {
    Ref list = Ref::steal(PyList_New(0));
    for (const CodePlace& p : places) {
        if (!list) return nullptr;
        const Ref row = Ref::steal(Py_BuildValue(
            "(sisO)", p.file.c_str(), p.line, p.function.c_str(), p.in_loop ? Py_True : Py_False));
        if (!row || PyList_Append(list.get(), row.get()) != 0) return nullptr;
    }
    return list.release();
}

}  // namespace ingot::capture
