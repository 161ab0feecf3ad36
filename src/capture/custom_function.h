// A custom `autograd.Function` of the program as a recording keeps it: what its forward got, gave
// and left in `ctx`, so that it can be carried out again over other tensors.
//
// While it is recorded the function runs for real on promises (custom_calls.cpp), and its backward
// is recorded with the rest of the graph. Only where the recorded calls are made one by one (double
// backwards, results without a gradient, programs that are not compiled) is this asked: PyTorch's
// own `Function.apply` then runs a forward that makes the recorded calls, with the program's
// backward. Costs what such a function costs in eager, and nothing where the program is compiled.
#pragma once
#include <Python.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/numbers.h"
#include "capture/ref.h"
#include "capture/world.h"
#include "trace/recorder.h"
#include "trace/replay.h"

namespace ingot::capture {

/// A Python object with tensors in it, without keeping the Python objects of these alive.
struct Kept {
    enum class Kind : std::uint8_t { Constant, Tensor, Number, Tuple, Size, List, Dict };
    Kind kind = Kind::Constant;
    Ref constant;
    at::Tensor tensor;
    c10::SymInt number = 0;
    std::vector<Kept> items;  // of a dict: keys and values in turns

    /// Throws Puzzle for what may be another object at another call.
    static Kept of(PyObject* object, const World& world, trace::Recorder& recorder,
                   Numbers& numbers, int depth = 4);
    /// The object with what stands for its tensors and symbolic numbers in a replay. New reference;
    /// nullptr with an error set.
    PyObject* made(const trace::Replay& replay) const;
    Kept mapped(const trace::CustomFunction::Map& map) const;
};

class RecordedFunction final : public trace::CustomFunction {
  public:
    struct Parts {
        Ref function;  // the class
        std::vector<Kept> arguments;
        std::vector<std::pair<std::string, Kept>> marks;       // C attributes of `ctx`
        std::vector<std::pair<std::string, Kept>> attributes;  // what is in its dict
        Kept result;                                           // of the forward
        std::vector<at::Tensor> outputs;                       // that `apply` gives for it
    };
    explicit RecordedFunction(Parts parts) : parts_(std::move(parts)) {}
    ~RecordedFunction() override;
    void apply(trace::Replay& replay, std::span<const trace::LoggedCall> forward) const override;
    std::shared_ptr<const trace::CustomFunction> mapped(const Map& map) const override;
    /// Its backward, while that was recorded, has asked for what was saved.
    void note_reading() { reads_saved_ = true; }
    /// What it has saved and its backward reads: eager looks whether it has changed when it is
    /// read.
    std::vector<at::Tensor> saved() const;
    const Parts& parts() const { return parts_; }

  private:
    Parts parts_;
    bool reads_saved_ = false;
};

/// The forward that is being recorded.
struct CustomForward {
    PyObject* function = nullptr;      // the class, borrowed
    std::map<std::string, Ref> marks;  // what it has stored in C attributes of `ctx`
};

/// Whether the object is the `ctx` of a custom function.
bool is_function_context(PyObject* object);

}  // namespace ingot::capture
