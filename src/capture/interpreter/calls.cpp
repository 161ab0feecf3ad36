// Calls and function objects. A Python function that is called gets its frame from CPython, which
// then asks the hook to execute it; so frames nest as they always do.
#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

Step Evaluator::kw_names(int index) {
    keyword_names_ = constant(index);
    return Step::next;
}

/// A bound method is taken apart, so that CALL passes its object as the first argument. An observer
/// gets it whole: what the method holds is known by the method.
Step Evaluator::precall(int count) {
    PyObject* marker = top(count + 2);
    PyObject* callable = top(count + 1);
    if (observer_ == nullptr && marker == nullptr && Py_IS_TYPE(callable, &PyMethod_Type)) {
        top(count + 2) = Py_NewRef(PyMethod_GET_FUNCTION(callable));
        top(count + 1) = Py_NewRef(PyMethod_GET_SELF(callable));
        Py_DECREF(callable);
    }
    return Step::next;
}

/// Notes the Python function whose frame will be the whole work of calling `callable`.
void Evaluator::look_for_direct(PyObject* callable) {
    direct_target_ = nullptr;
    if (PyMethod_Check(callable)) callable = PyMethod_GET_FUNCTION(callable);
    if (!PyFunction_Check(callable) && (Py_TYPE(callable)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 &&
        !PyType_Check(callable)) {
        PyObject* found = _PyType_Lookup(Py_TYPE(callable), names().call);
        if (found != nullptr) callable = found;
    }
    if (PyFunction_Check(callable)) direct_target_ = reinterpret_cast<PyFunctionObject*>(callable);
}

/// Calls `base[0]` with the `count` values behind it; then everything above and including the slot
/// `below` places under it goes.
Step Evaluator::call_with(PyObject** base, Py_ssize_t count, int below) {
    PyObject* callable = base[0];
    PyObject* keywords = keyword_names_;
    Py_ssize_t positional = count - (keywords != nullptr ? PyTuple_GET_SIZE(keywords) : 0);
    PyObject* result = nullptr;
    bool done;
    if (observer_ == nullptr) [[likely]] {
        keyword_names_ = nullptr;
        result = PyObject_Vectorcall(
            callable, base + 1,
            static_cast<std::size_t>(positional) | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
        done = result != nullptr;
    } else {
        Event event{Operation::call,
                    static_cast<int>(positional),
                    {base, static_cast<std::size_t>(count) + 1},
                    nullptr,
                    keywords};
        done = perform(event, &result, [&] {
            look_for_direct(callable);
            // The place below the first argument is not lent: frames further out show it.
            PyObject* value = PyObject_Vectorcall(callable, base + 1,
                                                  static_cast<std::size_t>(positional), keywords);
            direct_target_ = nullptr;
            return value;
        });
        if (!done && hand_back_) return failed();
        keyword_names_ = nullptr;
    }
    // In CPython's order: the callable, then the arguments; all are released after an error too.
    base[0] = nullptr;
    Py_DECREF(callable);
    sp_ = base + 1;
    for (Py_ssize_t i = 0; i < count; ++i) Py_DECREF(base[1 + i]);
    sp_ = base - below;
    if (!done) [[unlikely]]
        return failed();
    push(result);
    return check_breaker();
}

Step Evaluator::call(int count) {
    bool is_method = top(count + 2) != nullptr;
    return is_method ? call_with(sp_ - count - 2, count + 1, 0)
                     : call_with(sp_ - count - 1, count, 1);
}

Step Evaluator::call_function_ex(int flags) {
    bool has_keywords = (flags & 1) != 0;
    PyObject*& keywords = top();
    PyObject*& arguments = top(1 + has_keywords);
    PyObject* function = top(2 + has_keywords);
    if (has_keywords && !PyDict_CheckExact(keywords)) {
        PyObject* copy = PyDict_New();
        if (copy == nullptr) return Step::error;
        if (_PyDict_MergeEx(copy, keywords, 2) < 0) {
            Py_DECREF(copy);
            raise_for_keywords(function, keywords);
            return Step::error;
        }
        Py_SETREF(keywords, copy);
    }
    if (!PyTuple_CheckExact(arguments)) {
        if (!check_expandable(function, arguments)) return Step::error;
        // Its items come out of something that others may read, too, or out of a generator.
        PyObject* tuple = nullptr;
        bool taken = perform_effect({Operation::unpack, -2, {&arguments, 1}}, [&] {
            tuple = PySequence_Tuple(arguments);
            return tuple != nullptr;
        });
        if (!taken) {
            Py_XDECREF(tuple);
            return failed();
        }
        Py_SETREF(arguments, tuple);
    }
    PyObject* operands[] = {function, arguments, has_keywords ? keywords : nullptr};
    PyObject* result = nullptr;
    bool done = perform({Operation::call_expanded, 0, operands}, &result, [&] {
        if (observer_ != nullptr) look_for_direct(function);
        PyObject* value = PyObject_Call(function, operands[1], operands[2]);
        direct_target_ = nullptr;
        return value;
    });
    if (!done) return failed();
    sp_ -= 3 + has_keywords;  // with the marker below the function, which is nullptr
    push(result);
    Py_DECREF(function);
    Py_DECREF(operands[1]);
    Py_XDECREF(operands[2]);
    return check_breaker();
}

Step Evaluator::make_function(int parts) {
    PyObject* object = PyFunction_New(top(), frame_->f_globals);
    if (object == nullptr) return Step::error;
    drop(1);
    auto* function = reinterpret_cast<PyFunctionObject*>(object);
    if ((parts & 8) != 0) function->func_closure = pop();
    if ((parts & 4) != 0) function->func_annotations = pop();
    if ((parts & 2) != 0) function->func_kwdefaults = pop();
    if ((parts & 1) != 0) function->func_defaults = pop();
    push(object);
    return Step::next;
}

}  // namespace ingot::capture
