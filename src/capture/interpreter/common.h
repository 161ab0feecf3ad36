// What CPython 3.11 and 3.12 have in common but other versions may not: see cpython.h.
#pragma once

namespace ingot::capture::version {

/// The frame that was the current one before `frame` was pushed with `cframe`.
inline _PyInterpreterFrame* called_by(const _PyCFrame&, const _PyInterpreterFrame* frame) {
    return frame->previous;
}

/// The exception of the innermost handler that is running, borrowed; nullptr or None: there is
/// none.
inline PyObject* handled_exception(PyThreadState* thread) {
    _PyErr_StackItem* info = thread->exc_info;
    while ((info->exc_value == nullptr || info->exc_value == Py_None) &&
           info->previous_item != nullptr)
        info = info->previous_item;
    return info->exc_value;
}

}  // namespace ingot::capture::version
