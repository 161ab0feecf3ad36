// Generators, coroutines and asynchronous generators. Their frames live in the generator and come
// to the hook each time they go on. (The one instruction that makes the generator is CPython's.)
#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

namespace {

bool is_coroutine(PyObject* object) {
    if (PyCoro_CheckExact(object)) return true;
    return PyGen_CheckExact(object) &&
           (version::code_of_generator(object)->co_flags & CO_ITERABLE_COROUTINE) != 0;
}

/// What `await object` iterates over, a new reference.
PyObject* awaitable_of(PyObject* object) {
    if (is_coroutine(object)) return Py_NewRef(object);
    PyTypeObject* type = Py_TYPE(object);
    if (type->tp_as_async == nullptr || type->tp_as_async->am_await == nullptr) {
        PyErr_Format(PyExc_TypeError, "object %.100s can't be used in 'await' expression",
                     type->tp_name);
        return nullptr;
    }
    PyObject* iterator = type->tp_as_async->am_await(object);
    if (iterator == nullptr) return nullptr;
    if (is_coroutine(iterator)) {
        PyErr_SetString(PyExc_TypeError, "__await__() returned a coroutine");
        Py_CLEAR(iterator);
    } else if (!PyIter_Check(iterator)) {
        PyErr_Format(PyExc_TypeError, "__await__() returned non-iterator of type '%.100s'",
                     Py_TYPE(iterator)->tp_name);
        Py_CLEAR(iterator);
    }
    return iterator;
}

/// The same for GET_AWAITABLE, with its messages for `async with` (1: enter, 2: exit).
PyObject* awaitable_for(PyObject* object, int where) {
    PyObject* iterator = awaitable_of(object);
    PyTypeObject* type = Py_TYPE(object);
    if (iterator == nullptr) {
        if (where != 0 && (type->tp_as_async == nullptr || type->tp_as_async->am_await == nullptr))
            PyErr_Format(PyExc_TypeError,
                         "'async with' received an object from %s that does not implement"
                         " __await__: %.100s",
                         where == 1 ? "__aenter__" : "__aexit__", type->tp_name);
        return nullptr;
    }
    if (!PyCoro_CheckExact(iterator)) return iterator;
    PyObject* inner = PyObject_GetAttrString(iterator, "cr_await");
    if (inner != nullptr && inner != Py_None) {
        PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
        Py_CLEAR(iterator);
    } else if (inner == nullptr) {
        Py_CLEAR(iterator);
    }
    Py_XDECREF(inner);
    return iterator;
}

/// iter() of `async for`.
PyObject* asynchronous_iterator(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (type->tp_as_async == nullptr || type->tp_as_async->am_aiter == nullptr) {
        PyErr_Format(PyExc_TypeError,
                     "'async for' requires an object with __aiter__ method, got %.100s",
                     type->tp_name);
        return nullptr;
    }
    PyObject* iterator = type->tp_as_async->am_aiter(object);
    if (iterator == nullptr) return nullptr;
    PyTypeObject* kind = Py_TYPE(iterator);
    if (kind->tp_as_async == nullptr || kind->tp_as_async->am_anext == nullptr) {
        PyErr_Format(PyExc_TypeError,
                     "'async for' received an object from __aiter__ "
                     "that does not implement __anext__: %.100s",
                     kind->tp_name);
        Py_CLEAR(iterator);
    }
    return iterator;
}

/// next() of `async for`: what is to be awaited.
PyObject* asynchronous_next(PyObject* iterator) {
    PyTypeObject* type = Py_TYPE(iterator);
    if (PyAsyncGen_CheckExact(iterator)) return type->tp_as_async->am_anext(iterator);
    if (type->tp_as_async == nullptr || type->tp_as_async->am_anext == nullptr) {
        PyErr_Format(PyExc_TypeError,
                     "'async for' requires an iterator with __anext__ method, got %.100s",
                     type->tp_name);
        return nullptr;
    }
    PyObject* value = type->tp_as_async->am_anext(iterator);
    if (value == nullptr) return nullptr;
    PyObject* awaitable = awaitable_of(value);
    if (awaitable == nullptr)
        _PyErr_FormatFromCause(PyExc_TypeError,
                               "'async for' received an invalid object from __anext__: %.100s",
                               Py_TYPE(value)->tp_name);
    Py_DECREF(value);
    return awaitable;
}

/// The layout of the wrapper that CPython puts around what an asynchronous generator yields.
struct WrappedValue {
    PyObject head;
    PyObject* value;
};

}  // namespace

Step Evaluator::get_awaitable(int where) {
    PyObject* result = nullptr;
    if (!perform({Operation::await, 0, {&top(), 1}}, &result,
                 [=, this] { return awaitable_for(top(), where); }))
        return failed();
    replace(1, result);
    return Step::next;
}

Step Evaluator::get_aiter(int) {
    PyObject* result = nullptr;
    if (!perform({Operation::await, 1, {&top(), 1}}, &result,
                 [this] { return asynchronous_iterator(top()); }))
        return failed();
    replace(1, result);
    return Step::next;
}

Step Evaluator::get_anext(int) {
    PyObject* result = nullptr;
    bool done = perform({Operation::await, 2, {&top(), 1}}, &result,
                        [this] { return asynchronous_next(top()); });
    return push_result(done, result);
}

Step Evaluator::get_yield_from_iter(int) {
    PyObject* iterable = top();
    if (PyGen_CheckExact(iterable)) return Step::next;
    if (PyCoro_CheckExact(iterable)) {
        if ((frame_->f_code->co_flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE)) != 0)
            return Step::next;
        PyErr_SetString(PyExc_TypeError,
                        "cannot 'yield from' a coroutine object in a non-coroutine generator");
        return Step::error;
    }
    PyObject* result = nullptr;
    if (!perform({Operation::await, 3, {&top(), 1}}, &result,
                 [=] { return PyObject_GetIter(iterable); }))
        return failed();
    replace(1, result);
    return Step::next;
}

Step Evaluator::send(int offset) {
    PyObject* operands[] = {top(2), top()};
    PySendResult status = PYGEN_RETURN;
    PyObject* result = nullptr;
    bool done = perform({Operation::send, 0, operands}, &result, [&] {
        PyObject* value = nullptr;
        status = PyIter_Send(operands[0], operands[1], &value);
        return value;
    });
    if (!done) return failed();
    if (status == PYGEN_NEXT) {
        // The value that was sent makes room for the one that came.
        PyObject* sent = top();
        top() = result;
        Py_DECREF(sent);
        return Step::next;
    }
    if constexpr (version::kSendKeepsReceiver) {
        PyObject* sent = top();
        top() = result;
        Py_DECREF(sent);
    } else {
        replace(2, result);
    }
    next_ += offset;
    return Step::next;
}

Step Evaluator::yield_value(int) {
    if (observer_ != nullptr &&
        !perform_effect({Operation::yield_value, 0, {&top(), 1}}, [] { return true; }))
        return failed();
    _PyFrame_GetGenerator(frame_)->gi_frame_state = FRAME_SUSPENDED;
    result_ = pop();
    return Step::suspend;
}

Step Evaluator::async_gen_wrap(int) {
    auto* wrapped = PyObject_GC_New(WrappedValue, &_PyAsyncGenWrappedValue_Type);
    if (wrapped == nullptr) return Step::error;
    wrapped->value = top();
    PyObject_GC_Track(wrapped);
    top() = &wrapped->head;
    return Step::next;
}

Step Evaluator::end_async_for(int) {
    PyObject* value = top();
    if (PyErr_GivenExceptionMatches(value, PyExc_StopAsyncIteration) != 0) {
        drop(2);
        return Step::next;
    }
    if (version::kOwnsFrames && !has_handler()) return Step::finish;
    version::restore_exception(pop());
    return Step::unwind;
}

}  // namespace ingot::capture
