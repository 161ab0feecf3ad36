// Where the processor's random numbers stand, to be put back if a call fails: eager then draws the
// same numbers again. Costs a copy of the generator's state (2.5 KB) a call that draws.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <optional>

namespace ingot::trace {

struct DrawState {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;

    static DrawState now();
    void restore() const;
};

}  // namespace ingot::trace
