// Raising, handlers, `with`.
#include "capture/interpreter/decode.h"
#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

namespace {

/// An instance for the exception that a `raise` names, a class or an instance; a new reference.
PyObject* make_exception(PyObject* exception) {
    if (PyExceptionInstance_Check(exception)) return Py_NewRef(exception);
    if (!PyExceptionClass_Check(exception)) {
        PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
        return nullptr;
    }
    PyObject* instance = PyObject_CallNoArgs(exception);
    if (instance != nullptr && !PyExceptionInstance_Check(instance)) {
        PyErr_Format(PyExc_TypeError,
                     "calling %R should have returned an instance of BaseException, not %R",
                     exception, Py_TYPE(instance));
        Py_CLEAR(instance);
    }
    return instance;
}

/// The cause as `__cause__` wants it: a new reference, or nullptr for None. False with the error
/// set.
bool make_cause(PyObject* cause, PyObject** fixed) {
    *fixed = nullptr;
    if (PyExceptionClass_Check(cause)) {
        *fixed = PyObject_CallNoArgs(cause);
        return *fixed != nullptr;
    }
    if (PyExceptionInstance_Check(cause)) {
        *fixed = Py_NewRef(cause);
        return true;
    }
    if (cause == Py_None) return true;
    PyErr_SetString(PyExc_TypeError, "exception causes must derive from BaseException");
    return false;
}

/// Sets the error of `raise exception from cause`; `cause` may be nullptr.
void raise_exception(PyObject* exception, PyObject* cause) {
    PyObject* instance = make_exception(exception);
    if (instance == nullptr) return;
    PyObject* fixed = nullptr;
    if (cause == nullptr || make_cause(cause, &fixed)) {
        if (cause != nullptr) PyException_SetCause(instance, fixed);
        // A class is raised as itself, whatever its constructor returned.
        PyErr_SetObject(
            PyExceptionClass_Check(exception) ? exception : PyExceptionInstance_Class(instance),
            instance);
    }
    Py_DECREF(instance);
}

}  // namespace

Step Evaluator::raise_varargs(int count) {
    if (count == 0) {
        PyObject* value = version::handled_exception(thread_);
        if (value == nullptr || value == Py_None) {
            PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
            return Step::error;
        }
        if (version::kOwnsFrames && !has_handler()) return Step::finish;
        version::restore_exception(Py_NewRef(value));
        return Step::unwind;
    }
    PyObject* cause = count == 2 ? pop() : nullptr;
    PyObject* exception = pop();
    raise_exception(exception, cause);
    Py_DECREF(exception);
    Py_XDECREF(cause);
    return Step::error;
}

Step Evaluator::reraise(int depth) {
    if (version::kOwnsFrames && !has_handler()) return Step::finish;
    if (depth != 0) {
        PyObject* offset = top(depth + 1);
        if (!PyLong_Check(offset)) {
            PyErr_SetString(PyExc_SystemError, "lasti is not an int");
            return Step::error;
        }
        frame_->prev_instr = first() + PyLong_AsLong(offset);
    }
    version::restore_exception(pop());
    return Step::unwind;
}

Step Evaluator::push_exc_info(int) {
    PyObject* value = top();
    _PyErr_StackItem* info = thread_->exc_info;
    top() = info->exc_value != nullptr ? info->exc_value : Py_NewRef(Py_None);
    push(Py_NewRef(value));
    info->exc_value = value;
    return Step::next;
}

Step Evaluator::pop_except(int) {
    _PyErr_StackItem* info = thread_->exc_info;
    PyObject* old = info->exc_value;
    info->exc_value = pop();
    if (aborts(old)) [[unlikely]]
        keep_aborting(old);
    Py_XDECREF(old);
    return Step::next;
}

Step Evaluator::check_exc_match(int) {
    PyObject* exception = top(2);
    PyObject* type = top();
    if (!check_catchable(type, false)) return Step::error;
    bool matches = PyErr_GivenExceptionMatches(exception, type) != 0 && !aborts(exception);
    if (observer_ != nullptr &&
        !report({Operation::match_exception, 0, {sp_ - 2, 2}}, matches ? Py_True : Py_False))
        return failed();
    drop(1);
    push(Py_NewRef(matches ? Py_True : Py_False));
    return Step::next;
}

namespace {

/// Splits a group by `except* type`: what matches and what is left, new references.
bool split_group(PyObject* exception, PyObject* type, PyObject** match, PyObject** rest) {
    bool is_group =
        PyObject_TypeCheck(exception, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup));
    *match = *rest = nullptr;
    if (exception == Py_None) {
        *match = Py_NewRef(Py_None);
    } else if (PyErr_GivenExceptionMatches(exception, type)) {
        *match = is_group ? Py_NewRef(exception)
                          : PyObject_CallFunction(PyExc_BaseExceptionGroup, "s(O)", "", exception);
    } else if (is_group) {
        PyObject* pair = PyObject_CallMethodOneArg(exception, names().split, type);
        if (pair == nullptr) return false;
        *match = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
        *rest = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
        Py_DECREF(pair);
        return true;
    } else {
        *match = Py_NewRef(Py_None);
    }
    *rest = Py_NewRef(Py_None);
    return *match != nullptr;
}

}  // namespace

Step Evaluator::check_eg_match(int) {
    PyObject* exception = top(2);
    PyObject* type = top();
    if (!check_catchable(type, true)) return Step::error;
    if (aborts(exception)) {  // no part of it matches
        drop(1);
        push(Py_NewRef(Py_None));
        return Step::next;
    }
    PyObject *match, *rest;
    if (!split_group(exception, type, &match, &rest)) {
        Py_XDECREF(rest);
        return Step::error;
    }
    if (observer_ != nullptr && !report({Operation::match_exception, 1, {sp_ - 2, 2}}, match)) {
        Py_DECREF(match);
        Py_DECREF(rest);
        return failed();
    }
    drop(1);
    if (match == Py_None) {
        Py_DECREF(rest);
        push(match);
        return Step::next;
    }
    top() = rest;
    push(match);
    PyErr_SetExcInfo(nullptr, Py_NewRef(match), nullptr);
    Py_DECREF(exception);
    return Step::next;
}

Step Evaluator::with_except_start(int) {
    // On the stack: __exit__, the offset, the exception before, the exception.
    PyObject* value = top();
    PyObject* exit = top(4);
    PyObject* traceback = PyException_GetTraceback(value);
    Py_XDECREF(traceback);  // the exception keeps it
    PyObject* operands[] = {exit, PyExceptionInstance_Class(value), value, traceback};
    PyObject* result = nullptr;
    bool done = perform({Operation::exit_context, 0, operands}, &result, [&] {
        PyObject* arguments[] = {nullptr, operands[1], operands[2],
                                 traceback != nullptr ? traceback : Py_None};
        return PyObject_Vectorcall(exit, arguments + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                   nullptr);
    });
    // An asynchronous one is still to be awaited; what it says is of no account either.
    if (done && aborts(value) && decode(frame_->f_code, next_offset()).opcode != GET_AWAITABLE)
        Py_SETREF(result, Py_NewRef(Py_False));
    return push_result(done, result);
}

Step Evaluator::enter_context(PyObject* enter_name, PyObject* exit_name, bool asynchronous) {
    PyObject* manager = top();
    const char* kind = asynchronous ? "asynchronous context manager" : "context manager";
    PyObject* exit = nullptr;
    PyObject* result = nullptr;
    bool done =
        perform({Operation::enter_context, asynchronous, {&top(), 1}}, &result, [&]() -> PyObject* {
            PyObject* enter = _PyObject_LookupSpecial(manager, enter_name);
            if (enter == nullptr) {
                if (!PyErr_Occurred())
                    PyErr_Format(PyExc_TypeError,
                                 "'%.200s' object does not support the %s protocol",
                                 Py_TYPE(manager)->tp_name, kind);
                return nullptr;
            }
            exit = _PyObject_LookupSpecial(manager, exit_name);
            if (exit == nullptr) {
                if (!PyErr_Occurred())
                    PyErr_Format(PyExc_TypeError,
                                 "'%.200s' object does not support the %s protocol"
                                 " (missed %U method)",
                                 Py_TYPE(manager)->tp_name, kind, exit_name);
                Py_DECREF(enter);
                return nullptr;
            }
            PyObject* value = PyObject_CallNoArgs(enter);
            Py_DECREF(enter);
            return value;
        });
    if (done && exit == nullptr) {
        // The observer has entered it; leaving it is still the manager's.
        exit = _PyObject_LookupSpecial(manager, exit_name);
        if (exit == nullptr) Py_CLEAR(result);
        done = exit != nullptr;
    }
    if (!done) {
        Py_XDECREF(exit);
        return failed();
    }
    top() = exit;
    push(result);
    Py_DECREF(manager);
    return Step::next;
}

Step Evaluator::before_with(int) { return enter_context(names().enter, names().exit, false); }
Step Evaluator::before_async_with(int) {
    return enter_context(names().aenter, names().aexit, true);
}

}  // namespace ingot::capture
