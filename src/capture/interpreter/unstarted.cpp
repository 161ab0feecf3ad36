// See unstarted.h.
#include "capture/interpreter/unstarted.h"

#include "capture/interpreter/cpython.h"

namespace ingot::capture {

std::optional<GeneratorCall> call_of_unstarted(PyObject* generator) {
    if (!PyGen_CheckExact(generator)) return std::nullopt;
    auto* object = reinterpret_cast<PyGenObject*>(generator);
    if (object->gi_frame_state != FRAME_CREATED) return std::nullopt;
    auto* frame = reinterpret_cast<_PyInterpreterFrame*>(object->gi_iframe);
    PyFunctionObject* function = version::function_of(frame);
    PyCodeObject* code = version::code_of_generator(generator);
    if (reinterpret_cast<PyObject*>(code) != function->func_code ||
        object->gi_name != function->func_name || object->gi_qualname != function->func_qualname)
        return std::nullopt;
    GeneratorCall call{reinterpret_cast<PyObject*>(function), {}, {}, {}};
    // An argument that inner functions see is in a cell, which nobody else has yet.
    const auto argument = [&](int slot) {
        PyObject* value = frame->localsplus[slot];
        const bool in_cell =
            (PyBytes_AS_STRING(code->co_localspluskinds)[slot] & CO_FAST_CELL) != 0;
        return in_cell && value != nullptr && PyCell_Check(value) ? PyCell_GET(value) : value;
    };
    int slot = 0;
    for (; slot < code->co_argcount; ++slot) call.positional.push_back(argument(slot));
    for (int k = 0; k < code->co_kwonlyargcount; ++k, ++slot) {
        call.keyword_names.push_back(PyTuple_GET_ITEM(code->co_localsplusnames, slot));
        call.keyword_values.push_back(argument(slot));
    }
    if ((code->co_flags & CO_VARARGS) != 0) {
        PyObject* rest = argument(slot++);
        if (rest == nullptr || !PyTuple_CheckExact(rest)) return std::nullopt;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i)
            call.positional.push_back(PyTuple_GET_ITEM(rest, i));
    }
    if ((code->co_flags & CO_VARKEYWORDS) != 0) {
        PyObject* rest = argument(slot);
        if (rest == nullptr || !PyDict_CheckExact(rest)) return std::nullopt;
        Py_ssize_t position = 0;
        PyObject *name = nullptr, *value = nullptr;
        while (PyDict_Next(rest, &position, &name, &value)) {
            call.keyword_names.push_back(name);
            call.keyword_values.push_back(value);
        }
    }
    for (const auto* values : {&call.positional, &call.keyword_values})
        for (PyObject* value : *values)
            if (value == nullptr) return std::nullopt;
    return call;
}

}  // namespace ingot::capture
