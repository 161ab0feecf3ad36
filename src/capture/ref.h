// An owned reference to a Python object.
#pragma once
#include <Python.h>

#include <utility>

namespace ingot::capture {

class Ref {
  public:
    Ref() = default;
    /// Takes over a new reference (may be nullptr).
    static Ref steal(PyObject* object) {
        Ref r;
        r.object_ = object;
        return r;
    }
    /// Counts a borrowed reference up.
    static Ref borrow(PyObject* object) { return steal(Py_XNewRef(object)); }
    Ref(const Ref& other) : object_(Py_XNewRef(other.object_)) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    PyObject* object_ = nullptr;
};

}  // namespace ingot::capture
