// The search for the best form of a GPU's kernel: which forms are tried, in which order, and when
// another one than the model's is taken. Knows nothing of GPUs: what it asks of the world, time
// above all, is an interface, so that tests can be the world.
//
// A nest's form is found one property after the other, the best so far against its variations; a
// product's among all its rivals at once. The winner has to beat the model's form once more, and by
// more than what measurements differ by.
#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "codegen/gpu_forms.h"

namespace ingot::runtime {

class FormTrials {
  public:
    static constexpr double kImpossible = std::numeric_limits<double>::infinity();

    virtual ~FormTrials() = default;
    /// Whether the time that measuring may take is over, or nobody waits for the result any more.
    virtual bool over() = 0;
    /// What each form of the kernel takes, measured by turns; kImpossible where it cannot run.
    virtual std::vector<double> time(std::span<const codegen::GpuForm> forms) = 0;
};

struct FormAnswer {
    codegen::GpuForm form;  // the best
    double model = 0;       // what the model's form takes
    double best = 0;        // and this one
    int tried = 0;
    std::vector<std::pair<codegen::GpuForm, double>> times;  // of what was tried, in order
};

/// The best form of a nest; nothing where that is not known when the time is over, or where the
/// model's own cannot be measured.
std::optional<FormAnswer> search_nest(FormTrials& trials);

/// The best of the rivals, the first of which is the model's choice.
std::optional<FormAnswer> search_product(FormTrials& trials,
                                         std::span<const codegen::GpuForm> rivals);

}  // namespace ingot::runtime
