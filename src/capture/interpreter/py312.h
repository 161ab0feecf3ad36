// What is particular to CPython 3.12: see cpython.h. Here the evaluator that leaves a frame takes
// it off the thread's stack of frames itself, by functions that are not exported; therefore each
// frame's last instruction (a return, a yield, an error without a handler) is left to CPython's
// evaluator.
#pragma once
#include "internal/pycore_code.h"

namespace ingot::capture::version {

/// How far FOR_ITER jumps beyond its argument at the end of the iteration: over END_FOR.
inline constexpr int kForIterSkip = 1;
/// Whether an instruction only prepares the call behind it.
inline bool is_call_prefix(int opcode) { return opcode == KW_NAMES; }
/// Whether an instruction reads an attribute for a call, with a place for the object beside it.
inline bool loads_method(int opcode, int argument) {
    return opcode == LOAD_ATTR && (argument & 1) != 0;
}
/// Whether SEND leaves the receiver on the stack when it has returned.
inline constexpr bool kSendKeepsReceiver = true;
/// Whether the evaluator that leaves a frame must take it off the thread's stack itself.
inline constexpr bool kOwnsFrames = true;
/// COMPARE_OP's argument as Py_LT ... Py_GE.
inline int comparison(int argument) { return argument >> 4; }

inline PyFunctionObject* function_of(const _PyInterpreterFrame* frame) {
    return reinterpret_cast<PyFunctionObject*>(frame->f_funcobj);
}
// Tracing works by instructions that are replaced in the code; the table has none of them.
inline bool is_tracing(const _PyCFrame&) { return false; }
inline bool is_tracing(PyThreadState*) { return false; }
/// Whether RESUME is to put such instructions in or take them out.
inline bool must_instrument(PyThreadState* thread, PyCodeObject* code) {
    return code->_co_instrumentation_version != thread->interp->monitoring_version;
}
inline bool error_is_set(PyThreadState* thread) { return thread->current_exception != nullptr; }
inline bool eval_breaker_is_set(PyThreadState* thread) {
    return _Py_atomic_load_relaxed(&thread->interp->ceval.eval_breaker) != 0;
}
inline _Py_atomic_int& gil_drop_request(PyThreadState* thread) {
    return thread->interp->ceval.gil_drop_request;
}
/// A garbage collection that waits for the evaluator; false with the error set. (This is where C
/// code that runs long does it; signal handlers run too.)
inline bool collect_if_scheduled() { return PyErr_CheckSignals() == 0; }
/// The exception that another thread has sent is being raised. (The breaker itself stays set at
/// worst for one more look.)
inline void clear_async_signal(PyThreadState* thread) {
    thread->interp->ceval.pending.async_exc = 0;
}

inline PyCodeObject* code_of_generator(PyObject* generator) {
    auto* object = reinterpret_cast<PyGenObject*>(generator);
    return reinterpret_cast<_PyInterpreterFrame*>(object->gi_iframe)->f_code;
}
inline void raise_import_error(PyObject* message, PyObject* name, PyObject* path, PyObject* from) {
    PyErr_SetImportError(message, name, path);
    PyObject* error = PyErr_GetRaisedException();
    if (PyObject_TypeCheck(error, reinterpret_cast<PyTypeObject*>(PyExc_ImportError)))
        Py_XSETREF(reinterpret_cast<PyImportErrorObject*>(error)->name_from, Py_NewRef(from));
    PyErr_SetRaisedException(error);
}

/// Makes `frame` the current one of the thread; `cframe` lives on the C stack while it runs.
inline void push_frame(PyThreadState* thread, _PyCFrame& cframe, _PyInterpreterFrame* frame) {
    cframe.previous = thread->cframe;
    thread->cframe = &cframe;
    frame->previous = cframe.previous->current_frame;
    cframe.current_frame = frame;
}
inline void pop_frame(PyThreadState* thread, _PyCFrame& cframe) {
    thread->cframe = cframe.previous;
}

/// Counts one level of Python's recursion and of C's; false, with nothing counted and no error set,
/// when it is too deep: CPython's evaluator then raises the error.
inline bool enter_recursion(PyThreadState* thread) {
    if (thread->py_recursion_remaining <= 1 || thread->c_recursion_remaining <= 3) return false;
    thread->py_recursion_remaining--;
    thread->c_recursion_remaining--;
    return true;
}
inline void leave_recursion(PyThreadState* thread) {
    thread->py_recursion_remaining++;
    thread->c_recursion_remaining++;
}

/// The frame of a frame object or generator that has not got as far as its first real instruction.
inline bool is_complete(_PyInterpreterFrame* frame) { return !_PyFrame_IsIncomplete(frame); }

/// Takes the raised exception with its traceback; clears the error.
inline PyObject* take_exception() { return PyErr_GetRaisedException(); }
/// Raises `value` (a reference that is taken over) with the traceback it carries.
inline void restore_exception(PyObject* value) { PyErr_SetRaisedException(value); }

/// Whether `value` is the exception that is set.
inline bool error_is(PyThreadState* thread, PyObject* value) {
    return thread->current_exception == value;
}
/// Whether the frame is a generator's, coroutine's or asynchronous generator's that goes on.
inline bool is_of_generator(const _PyInterpreterFrame* frame) {
    return frame->owner == FRAME_OWNED_BY_GENERATOR;
}

/// The key for which merging keyword arguments has raised a KeyError, a new reference; the error is
/// then cleared. nullptr for any other KeyError.
inline PyObject* take_duplicate_key() {
    PyObject* error = PyErr_GetRaisedException();
    PyObject* arguments = reinterpret_cast<PyBaseExceptionObject*>(error)->args;
    if (arguments == nullptr || !PyTuple_Check(arguments) || PyTuple_GET_SIZE(arguments) != 1) {
        PyErr_SetRaisedException(error);
        return nullptr;
    }
    PyObject* key = Py_NewRef(PyTuple_GET_ITEM(arguments, 0));
    Py_DECREF(error);
    return key;
}

}  // namespace ingot::capture::version
