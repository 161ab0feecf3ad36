// Python's lock and pending error over C++ code that must not hold or see them.
#pragma once
#include <Python.h>

namespace ingot::bindings {

/// Lets other threads run Python while this one does not.
class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    ~WithoutLock() { PyEval_RestoreThread(state_); }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

  private:
    PyThreadState* state_;
};

/// Keeps a pending Python error over code that must not see it.
class Pending {
  public:
    Pending() { PyErr_Fetch(&type_, &value_, &trace_); }
    ~Pending() { PyErr_Restore(type_, value_, trace_); }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    /// The error as an exception object with its type; both nullptr when there was none.
    PyTypeObject* type() const { return reinterpret_cast<PyTypeObject*>(type_); }
    PyObject* exception() {
        PyErr_NormalizeException(&type_, &value_, &trace_);
        return value_;
    }

  private:
    PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace ingot::bindings
