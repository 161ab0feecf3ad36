// A call of a compiled function that stops on the way and hands over the results it has.
//
// For a backward whose gradients others wait for: see delivery.h. Inputs are given away and results
// made as in CompiledFunction::call_with. Not safe from several threads at once; what it has lent
// from the function goes back when it is destroyed, wherever it has stopped.
#pragma once
#include <cstdint>
#include <vector>

#include "trace/compiled_call.h"

namespace ingot::trace {

class CompiledFunction::Parts {
  public:
    /// `times`: the function's. `given`: inputs as the function wants them.
    Parts(CompiledFunction& function, const Times& times, std::vector<at::Tensor> given);
    Parts(const Parts&) = delete;
    Parts& operator=(const Parts&) = delete;
    /// Goes on until `steps` steps have been run. Exceptions of calls pass.
    CallStatus run_to(std::size_t steps);
    /// Result `i`, once, which must be there.
    at::Tensor take(std::size_t i);

  private:
    const CompiledFunction& function_;
    std::vector<at::Tensor> given_;
    std::vector<c10::TensorImpl*> inputs_;
    CallFrame frame_;
    GivenMemory memory_;
    std::vector<int> takers_;      // by graph output: results that are still to be made of it
    std::vector<bool> collected_;  // by graph output
    std::size_t done_ = 0;
};

}  // namespace ingot::trace
