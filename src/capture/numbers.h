// Symbolic numbers while Python is recorded.
//
// Python code sees plain integers, exactly those that eager would show it; which of them stand for
// a size that may be another one at the next call is known here, by the address of the object (each
// is an object of its own, small ones too). The recorder asks before each operation: operators of
// PyTorch get the symbol instead of the number and the promise instead of the tensor; arithmetic
// and comparisons of integers make new symbols and relations; what only moves objects needs
// nothing; before all else the number is needed: it is *specialised*, a guard that it has this
// value. So an operation that nobody thought of costs a recording and is never wrong.
//
// Made with each segment. Cost: nothing while nothing is symbolic.
#pragma once
#include <Python.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "capture/ref.h"
#include "trace/recorder.h"

namespace ingot::capture {

class Numbers {
  public:
    explicit Numbers(trace::Recorder& recorder) : recorder_(recorder) {}
    Numbers(const Numbers&) = delete;
    Numbers& operator=(const Numbers&) = delete;

    /// Whether anything is symbolic.
    bool any() const { return !tensors_.empty() || !numbers_.empty(); }
    /// The tensor (not a promise) gets symbolic sizes; its promise.
    at::Tensor add_tensor(PyObject* tensor, std::span<const trace::SymbolicSize> sizes);
    /// An object for the symbolic integer; a plain one if it is a number. Held here.
    Ref add_number(const c10::SymInt& value);

    /// The symbol behind an object, nullptr if there is none.
    const c10::SymInt* find(PyObject* object) const;
    /// The value of an exact int, symbolic or not; nothing for other objects and huge numbers.
    std::optional<c10::SymInt> value_of(PyObject* object) const;
    /// Whether the sizes of this tensor, given or made, are symbolic.
    bool has_symbolic_sizes(PyObject* tensor) const;
    /// What takes the place of `object` in an operator's call: promises and symbols, in tuples,
    /// lists and slices too. A null reference: the object itself.
    Ref stand_in(PyObject* object) const;
    /// Back again: what Python sees of an operator's result. Takes the reference.
    PyObject* settled(PyObject* result);
    /// Guards that every number and every size of a tensor that can be reached from the object is
    /// what it is.
    void specialise(PyObject* object);
    void specialise(std::span<PyObject* const> objects) {
        for (PyObject* o : objects) specialise(o);
    }

  private:
    struct Tensor {
        Ref object;
        at::Tensor promise;
    };
    struct Number {
        Ref object;
        c10::SymInt value;
    };
    void specialise_one(PyObject* object);
    void specialise_all();
    Ref stand_in_tuple(PyObject* tuple) const;

    trace::Recorder& recorder_;
    std::unordered_map<PyObject*, Tensor> tensors_;
    std::unordered_map<c10::TensorImpl*, PyObject*> originals_;  // by promise
    std::unordered_map<PyObject*, Number> numbers_;
    std::vector<Ref> specialised_;  // their addresses stay theirs
};

}  // namespace ingot::capture
