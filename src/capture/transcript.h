// What was recorded, to be carried out again by eager, and promises that become real tensors.
//
// Taken when a segment ends, before the recorder gives its graph away: where no program is made (or
// its making fails), eager makes the recorded calls and the promises get what they promised. Costs
// what the calls cost.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

#include "capture/ref.h"
#include "trace/recorder.h"

namespace ingot::capture {

/// Gives promises their contents, and their places in PyTorch's graph; the Python objects and all
/// that refer to them stay.
void fulfil_all(const std::vector<at::Tensor>& promises, std::vector<at::Tensor> reals);

/// An operator that was put off has raised: the Python error. What came before it in the program is
/// done and filled in.
class PutOff final : public pybind11::error_already_set {
  public:
    explicit PutOff(std::size_t calls) : calls_made(calls) {}
    std::size_t calls_made;  // before it
};

/// What a recording needs to be carried out again.
struct Transcript {
    std::vector<trace::LoggedCall> log;
    std::vector<trace::InputSource> inputs;
    std::shared_ptr<trace::SymbolicSizes> symbols;
    /// Promises that are filled, too, where a call raises.
    std::vector<at::Tensor> kept{};

    explicit Transcript(const trace::Recorder& r)
        : log(r.log().begin(), r.log().end()),
          inputs(r.inputs().begin(), r.inputs().end()),
          symbols(r.symbols()) {}
    /// The promises that Python still holds, beside the dicts of `contexts`.
    std::vector<at::Tensor> live(std::span<const Ref> contexts = {}) const;
    /// Whether carrying the calls out changes a tensor in place; whether it draws random numbers.
    bool writes() const;
    bool draws() const;
    /// Carries the calls out eagerly: what takes the place of the promises. Throws PutOff.
    std::vector<at::Tensor> run(const std::vector<at::Tensor>& promises) const;
    /// The same, and fills them.
    void fill_all(const std::vector<at::Tensor>& promises) const;
};

}  // namespace ingot::capture
