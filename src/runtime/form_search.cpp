// See form_search.h.
#include "runtime/form_search.h"

#include <algorithm>

namespace ingot::runtime {

using codegen::GpuForm;
using codegen::NestForm;

namespace {

/// Of the model's time: what a form must stay below.
constexpr double kBetter = 0.97;

struct Property {
    unsigned NestForm::* which;
    std::vector<unsigned> values;
};

const std::vector<Property>& properties() {
    static const std::vector<Property> all = {
        {&NestForm::each, {1, 2, 4, 8}},
        {&NestForm::threads, {64, 128, 256, 512, 1024}},
        {&NestForm::lanes, {1, 2, 4, 8}},
    };
    return all;
}

std::size_t least(std::span<const double> times) {
    return static_cast<std::size_t>(std::ranges::min_element(times) - times.begin());
}

/// The winner against the model's form, which is kept unless the other is clearly better.
std::optional<FormAnswer> confirmed(FormTrials& trials, const GpuForm& model, const GpuForm& winner,
                                    double time_of_model, int tried) {
    if (winner == model) return FormAnswer{model, time_of_model, time_of_model, tried};
    const GpuForm both[] = {model, winner};
    const std::vector<double> times = trials.time(both);
    if (times[1] < kBetter * times[0]) return FormAnswer{winner, times[0], times[1], tried};
    return FormAnswer{model, times[0], times[0], tried};
}

}  // namespace

std::optional<FormAnswer> search_nest(FormTrials& trials) {
    NestForm best;
    double time_of_model = 0;
    int tried = 1;
    std::vector<std::pair<GpuForm, double>> all;
    for (const Property& property : properties()) {
        if (trials.over()) return std::nullopt;
        std::vector<GpuForm> rivals{best};
        for (const unsigned value : property.values) {
            NestForm form = best;
            form.*property.which = value;
            rivals.emplace_back(form);
        }
        const std::vector<double> times = trials.time(rivals);
        for (std::size_t r = 0; r < rivals.size(); ++r) all.emplace_back(rivals[r], times[r]);
        tried += static_cast<int>(rivals.size()) - 1;
        if (best == NestForm{}) {
            if (times[0] == FormTrials::kImpossible) return std::nullopt;
            time_of_model = times[0];
        }
        const std::size_t found = least(times);
        if (times[found] < kBetter * times[0]) best = std::get<NestForm>(rivals[found]);
    }
    if (trials.over()) return std::nullopt;
    auto answer = confirmed(trials, NestForm{}, best, time_of_model, tried);
    answer->times = std::move(all);
    return answer;
}

std::optional<FormAnswer> search_product(FormTrials& trials, std::span<const GpuForm> rivals) {
    if (rivals.empty() || trials.over()) return std::nullopt;
    const std::vector<double> times = trials.time(rivals);
    if (times[0] == FormTrials::kImpossible || trials.over()) return std::nullopt;
    return confirmed(trials, rivals[0], rivals[least(times)], times[0],
                     static_cast<int>(rivals.size()));
}

}  // namespace ingot::runtime
