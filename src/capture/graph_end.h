// The end of a segment's graph: its inputs, outputs and program.
//
// Made when a segment ends. Recipes ask it for the tensors that live on, which become outputs;
// `run` then compiles what was recorded, runs it and fills the promises.
#pragma once
#include <Python.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/recording.h"
#include "capture/transcript.h"

namespace ingot::capture {

/// What is recorded cannot be compiled for many sizes; for one it may.
/// (`sizes_only`: floats that change may stay.)
class NeedsNumbers : public std::runtime_error {
  public:
    NeedsNumbers(const std::string& reason, bool only)
        : std::runtime_error(reason), sizes_only(only) {}
    bool sizes_only;
};

/// The backward of a custom function cannot be recorded: the function has to be a break.
class NeedsBreaks : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class GraphEnd {
  public:
    GraphEnd(trace::Recorder& recorder, const World& world, const Numbers& numbers,
             const Backwards& backwards, Segment& segment, Histories& histories)
        : recorder_(recorder),
          world_(world),
          numbers_(numbers),
          backwards_(backwards),
          segment_(segment),
          histories_(histories) {}

    /// Where an object comes from; a promise becomes an output.
    Origin origin_of(PyObject* o);
    std::int32_t add_output(const at::Tensor& t);
    /// Compiles, runs and fills. Throws Error, NeedsNumbers, NeedsBreaks or a Python error.
    /// `observer`: of the program's code in backwards; nullptr: there is none.
    /// False: an operator fails by its data and nothing is filled; only if `may_fail`, else that is
    /// an Error. The segment's program is made all the same.
    bool run(const RecordingContext& context, const Transcript& transcript, Counters& counters,
             Observer* observer, bool may_fail);

  private:
    void compile(const RecordingContext& context, const Transcript& transcript, Observer* observer);
    void compile_by_backend(const RecordingContext& context, const Transcript& transcript);
    /// Leaves a program that repeats the recording, with a line in the log if compiling it failed.
    void reproduce(const RecordingContext& context, const Transcript& transcript, bool failed);
    void assign_inputs(bool for_backend);
    /// Takes histories that were freed from the outputs; the program puts something in their place.
    std::vector<std::string> take_spent();
    /// The inputs with the call's tensors first, in the order in which they come; for people who
    /// read the graph. Operators ask for them in an order of their own.
    std::vector<std::size_t> readable_order() const;
    void order_inputs();

    trace::Recorder& recorder_;
    const World& world_;
    const Numbers& numbers_;
    const Backwards& backwards_;
    Segment& segment_;
    Histories& histories_;
    std::unordered_map<c10::TensorImpl*, std::size_t> index_;
    std::vector<at::Tensor> outputs_, examples_, promises_;
    std::vector<std::string> names_;  // of the examples, for people
    std::string reason_;              // why the program is not compiled
    bool bug_ = false;                // it should have been
};

}  // namespace ingot::capture
