// The instructions that CPython 3.12 has and 3.11 has not.
#include "capture/interpreter/cpython.h"

#if PY_VERSION_HEX >= 0x030C0000
#include "capture/interpreter/errors.h"
#include "capture/interpreter/hot.h"
#include "internal/pycore_intrinsics.h"
#include "internal/pycore_pyerrors.h"

namespace ingot::capture {

Step Evaluator::load_fast_and_clear(int slot) {
    push(local(slot));
    local(slot) = nullptr;
    return Step::next;
}

Step Evaluator::load_attr_or_method(int argument) {
    return (argument & 1) != 0 ? load_method(argument >> 1) : load_attr(argument >> 1);
}

/// super().name in one instruction: the places of `super`, the class and the object.
Step Evaluator::load_super_attr(int argument) {
    PyObject* key = name(argument >> 2);
    PyObject* operands[] = {top(3), top(2), top()};
    auto count = static_cast<std::size_t>(argument & 2);
    PyObject* bound = nullptr;
    if (!perform({Operation::call, static_cast<int>(count), {operands, count + 1}}, &bound,
                 [&] { return PyObject_Vectorcall(operands[0], operands + 1, count, nullptr); }))
        return failed();
    PyObject* result = nullptr;
    bool done = perform({Operation::read_attribute, argument & 1, {&bound, 1}, key}, &result,
                        [=] { return PyObject_GetAttr(bound, key); });
    Py_DECREF(bound);
    if (!done) return failed();
    drop(3);
    if ((argument & 1) != 0) push(nullptr);
    push(result);
    return Step::next;
}

Step Evaluator::load_locals(int) {
    if (frame_->f_locals == nullptr) {
        PyErr_SetString(PyExc_SystemError, "no locals");
        return Step::error;
    }
    push(Py_NewRef(frame_->f_locals));
    return Step::next;
}

Step Evaluator::load_from_dict_or_globals(int index) {
    PyObject* key = name(index);
    PyObject* operands[] = {top(), frame_->f_globals, frame_->f_builtins};
    PyObject* result = nullptr;
    bool done = perform({Operation::read_name, 0, operands, key}, &result, [&]() -> PyObject* {
        PyObject* value = PyObject_GetItem(operands[0], key);
        if (value != nullptr || !PyErr_ExceptionMatches(PyExc_KeyError)) return value;
        PyErr_Clear();
        bool from_builtins;
        return look_up_global(key, &from_builtins);
    });
    if (!done) return failed();
    replace(1, result);
    return Step::next;
}

Step Evaluator::load_from_dict_or_deref(int slot) {
    PyObject* mapping = top();
    Step step = push_class_cell(slot, mapping);
    if (step != Step::next) return step;
    PyObject* value = pop();
    replace(1, value);
    return Step::next;
}

Step Evaluator::binary_slice(int) {
    PyObject* slice = PySlice_New(top(2), top(), nullptr);
    if (slice == nullptr) return Step::error;
    PyObject* operands[] = {top(3), slice};
    PyObject* result = nullptr;
    bool done = perform({Operation::read_item, 0, operands}, &result,
                        [&] { return PyObject_GetItem(operands[0], slice); });
    Py_DECREF(slice);
    if (!done) return failed();
    replace(3, result);
    return Step::next;
}

Step Evaluator::store_slice(int) {
    PyObject* slice = PySlice_New(top(2), top(), nullptr);
    if (slice == nullptr) return Step::error;
    PyObject* operands[] = {top(3), slice, top(4)};
    bool done = perform_effect({Operation::store_item, 0, operands}, [&] {
        return PyObject_SetItem(operands[0], slice, operands[2]) == 0;
    });
    Py_DECREF(slice);
    if (!done) return failed();
    drop(4);
    return Step::next;
}

Step Evaluator::call_expanding_method(int count) {
    precall(count);
    return call(count);
}

Step Evaluator::call_intrinsic_1(int which) {
    switch (which) {
        case INTRINSIC_UNARY_POSITIVE:
            return unary_positive(0);
        case INTRINSIC_LIST_TO_TUPLE:
            return list_to_tuple(0);
        case INTRINSIC_ASYNC_GEN_WRAP:
            return async_gen_wrap(0);
        default:
            return Step::hand_back;
    }
}

Step Evaluator::call_intrinsic_2(int which) {
    if (which != INTRINSIC_PREP_RERAISE_STAR) return Step::hand_back;
    PyObject* result = _PyExc_PrepReraiseStar(top(2), top());
    if (result == nullptr) return Step::error;
    replace(2, result);
    return Step::next;
}

Step Evaluator::end_for(int) {
    drop(2);
    return Step::next;
}

Step Evaluator::end_send(int) {
    PyObject* value = pop();
    replace(1, value);
    return Step::next;
}

/// An exception came out of what `yield from` or `await` waits for: its end, or to be raised on.
Step Evaluator::cleanup_throw(int) {
    PyObject* error = top();
    if (PyErr_GivenExceptionMatches(error, PyExc_StopIteration) == 0) {
        if (!has_handler()) return Step::finish;
        version::restore_exception(Py_NewRef(error));
        return Step::unwind;
    }
    PyObject* value = Py_NewRef(reinterpret_cast<PyStopIterationObject*>(error)->value);
    drop(3);
    push(Py_NewRef(Py_None));
    push(value);
    return Step::next;
}

Step Evaluator::return_by_cpython(int) {
    result_ = top();
    return Step::finish;
}

Step Evaluator::return_const_by_cpython(int index) {
    result_ = constant(index);
    return Step::finish;
}

Step Evaluator::yield_by_cpython(int) {
    if (observer_ != nullptr &&
        !perform_effect({Operation::yield_value, 0, {&top(), 1}}, [] { return true; }))
        return failed();
    result_ = top();
    exit_ = Exit::suspended;
    return Step::finish;
}

}  // namespace ingot::capture
#endif
