// Symbolic numbers while Python is recorded.
//
// Python code sees plain integers and floats, exactly those that eager would show it; which of them
// stand for a number that may be another one at the next call is known here, by the address of the
// object (each is an object of its own, small ones too). The recorder asks before each operation:
// operators of PyTorch get the symbol instead of the number and the promise instead of the tensor;
// arithmetic and comparisons of integers make new symbols and relations; what only moves objects
// needs nothing; before all else the number is needed: it is *specialised*, a guard that it has
// this value. So an operation that nobody thought of costs a recording and is never wrong.
//
// Made with each segment. Cost: nothing while nothing is symbolic.
#pragma once
#include <Python.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "capture/guards.h"
#include "capture/ref.h"
#include "trace/recorder.h"

namespace ingot::capture {

class Numbers {
  public:
    /// `guards`: of the segment that is being recorded.
    Numbers(trace::Recorder& recorder, GuardSet& guards) : recorder_(recorder), guards_(guards) {}
    Numbers(const Numbers&) = delete;
    Numbers& operator=(const Numbers&) = delete;

    /// Whether anything is symbolic, or was until its number was needed.
    bool any() const {
        return !tensors_.empty() || !numbers_.empty() || !floats_.empty() || !specialised_.empty();
    }
    /// The tensor (not a promise) gets symbolic sizes; its promise.
    at::Tensor add_tensor(PyObject* tensor, std::span<const trace::SymbolicSize> sizes);
    /// Grows with each number and tensor that becomes symbolic.
    std::size_t met() const { return met_; }
    /// An object for the symbolic integer; a plain one if it is a number. Held here.
    Ref add_number(const c10::SymInt& value);

    /// The program's tensors lie there: the floats that it is given will, too.
    void found_gpu(c10::Device device) {
        if (device_.is_cpu()) device_ = device;
    }
    /// An object for a float of the segment's guards. Held here.
    Ref add_float(FloatGuards::Index index);

    /// Whether the object is a number that may be another one at the next call.
    bool is_symbolic(PyObject* object) const {
        return numbers_.contains(object) || floats_.contains(object);
    }
    /// The float behind an object, if it is symbolic.
    std::optional<FloatGuards::Index> find_float(PyObject* object) const;
    /// An int or float, symbolic or not, as a float of the segment's guards; nothing for other
    /// objects and for integers that no double has.
    std::optional<FloatGuards::Index> float_of(PyObject* object);
    /// Which float the program is given by this tensor; nothing for any other.
    std::optional<FloatGuards::Index> float_input(const at::Tensor& real) const;
    double example(FloatGuards::Index index) const { return guards_.floats.example(index); }
    /// Guards the values of floats that PyTorch has asked for.
    void fix_read_floats();

    /// The symbol behind an object, nullptr if there is none.
    const c10::SymInt* find(PyObject* object) const;
    /// The value of an exact int, symbolic or not; nothing for other objects and huge numbers.
    std::optional<c10::SymInt> value_of(PyObject* object) const;
    /// Whether the sizes of this tensor, given or made, are symbolic.
    bool has_symbolic_sizes(PyObject* tensor) const;
    /// What takes the place of `object` in an operator's call: promises and symbols, in tuples,
    /// lists and slices too. A null reference: the object itself. `as_tensor`: a float as the
    /// tensor that the program is given for it, for operators of Python.
    Ref stand_in(PyObject* object, bool as_tensor = false);
    /// Back again: what Python sees of an operator's result. Takes the reference.
    PyObject* settled(PyObject* result);
    /// Guards the values of the floats among the objects and in tuples, lists and dicts; whether
    /// there was one.
    bool specialise_floats(std::span<PyObject* const> objects, int depth = 3);
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
    Ref stand_in_tuple(PyObject* tuple);
    struct Float {
        Ref object;
        FloatGuards::Index index = -1;
    };
    struct FloatInput {
        c10::SymFloat symbol;
        at::Tensor promise, real;
    };
    const FloatInput& input_of(FloatGuards::Index index);

    trace::Recorder& recorder_;
    GuardSet& guards_;
    std::unordered_map<PyObject*, Float> floats_;
    std::unordered_map<FloatGuards::Index, FloatInput> float_inputs_;
    std::unordered_map<PyObject*, Tensor> tensors_;
    std::unordered_map<c10::TensorImpl*, PyObject*> originals_;  // by promise
    std::unordered_map<PyObject*, Number> numbers_;
    std::vector<Ref> specialised_;  // their addresses stay theirs
    std::size_t met_ = 0;
    c10::Device device_ = c10::kCPU;
};

}  // namespace ingot::capture
