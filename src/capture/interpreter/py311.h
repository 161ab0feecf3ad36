// What is particular to CPython 3.11: see cpython.h.
#pragma once

namespace ingot::capture::version {

/// How far FOR_ITER jumps beyond its argument at the end of the iteration.
inline constexpr int kForIterSkip = 0;
/// Whether an instruction only prepares the call behind it.
inline bool is_call_prefix(int opcode) { return opcode == KW_NAMES || opcode == PRECALL; }
/// Whether an instruction reads an attribute for a call, with a place for the object beside it.
inline bool loads_method(int opcode, int) { return opcode == LOAD_METHOD; }
/// Whether SEND leaves the receiver on the stack when it has returned.
inline constexpr bool kSendKeepsReceiver = false;
/// Whether the evaluator that leaves a frame must take it off the thread's stack itself.
inline constexpr bool kOwnsFrames = false;
/// COMPARE_OP's argument as Py_LT ... Py_GE.
inline int comparison(int argument) { return argument; }

inline PyFunctionObject* function_of(const _PyInterpreterFrame* frame) { return frame->f_func; }
inline bool is_tracing(const _PyCFrame& cframe) { return cframe.use_tracing != 0; }
/// (Of 3.12.)
inline bool must_instrument(PyThreadState*, PyCodeObject*) { return false; }
inline bool error_is_set(PyThreadState* thread) { return thread->curexc_type != nullptr; }
inline bool eval_breaker_is_set(PyThreadState* thread) {
    return _Py_atomic_load_relaxed(&thread->interp->ceval.eval_breaker) != 0;
}

inline _Py_atomic_int& gil_drop_request(PyThreadState* thread) {
    return thread->interp->ceval.gil_drop_request;
}
/// A garbage collection that waits for the evaluator (of 3.12); false with the error set.
inline bool collect_if_scheduled() { return true; }
/// The exception that another thread has sent is being raised. (The breaker itself stays set at
/// worst for one more look.)
inline void clear_async_signal(PyThreadState* thread) {
    thread->interp->ceval.pending.async_exc = 0;
}

inline bool is_tracing(PyThreadState* thread) { return thread->cframe->use_tracing != 0; }

inline PyCodeObject* code_of_generator(PyObject* generator) {
    return reinterpret_cast<PyGenObject*>(generator)->gi_code;
}
inline void raise_import_error(PyObject* message, PyObject* name, PyObject* path, PyObject*) {
    PyErr_SetImportError(message, name, path);
}

/// Makes `frame` the current one of the thread; `cframe` lives on the C stack while it runs.
inline void push_frame(PyThreadState* thread, _PyCFrame& cframe, _PyInterpreterFrame* frame) {
    cframe.use_tracing = thread->cframe->use_tracing;
    cframe.previous = thread->cframe;
    thread->cframe = &cframe;
    frame->is_entry = true;
    frame->previous = cframe.previous->current_frame;
    cframe.current_frame = frame;
}
inline void pop_frame(PyThreadState* thread, _PyCFrame& cframe) {
    thread->cframe = cframe.previous;
    thread->cframe->use_tracing = cframe.use_tracing;
}

/// Counts one level of Python's recursion; false with the error set when it is too deep.
inline bool enter_recursion(PyThreadState* thread) {
    if (thread->recursion_remaining-- > 0 || _Py_CheckRecursiveCall(thread, "") == 0) return true;
    // The check took its level back; the caller leaves as from an entered one.
    thread->recursion_remaining--;
    return false;
}
inline void leave_recursion(PyThreadState* thread) { thread->recursion_remaining++; }

/// The frame of a frame object or generator that has not got as far as its first real instruction.
inline bool is_complete(_PyInterpreterFrame* frame) { return !_PyFrame_IsIncomplete(frame); }

/// Takes the raised exception as one normalised object with its traceback; clears the error.
inline PyObject* take_exception() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyException_SetTraceback(value, traceback != nullptr ? traceback : Py_None);
    Py_XDECREF(traceback);
    Py_XDECREF(type);
    return value;
}
/// Raises `value` (a reference that is taken over) with the traceback it carries.
inline void restore_exception(PyObject* value) {
    PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(value)), value,
                  PyException_GetTraceback(value));
}

/// Whether `value` is the exception that is set.
inline bool error_is(PyThreadState* thread, PyObject* value) {
    return thread->curexc_value == value;
}
/// Whether the frame is a generator's, coroutine's or asynchronous generator's that goes on.
inline bool is_of_generator(const _PyInterpreterFrame* frame) {
    return frame->owner == FRAME_OWNED_BY_GENERATOR;
}

/// The key for which merging keyword arguments has raised a KeyError, a new reference; the error is
/// then cleared. nullptr for any other KeyError.
inline PyObject* take_duplicate_key() {
    PyObject *type, *value, *traceback, *key = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    if (value == nullptr || !PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 1) {
        PyErr_Restore(type, value, traceback);
        return nullptr;
    }
    key = Py_NewRef(PyTuple_GET_ITEM(value, 0));
    Py_XDECREF(type);
    Py_DECREF(value);
    Py_XDECREF(traceback);
    return key;
}

}  // namespace ingot::capture::version
