// What measuring the forms of a GPU program's kernels has come to; see gpu_tuner.h.
#pragma once
#include <string>
#include <vector>

namespace ingot::runtime {

struct TuningReport {
    int kernels = 0;     // whose forms were measured
    int forms = 0;       // that they were measured in
    int changed = 0;     // kernels that got another one
    double seconds = 0;  // that it took
    /// A line for each kernel: what it is, its form, what it took and takes.
    std::vector<std::string> lines;
};

/// In a few words.
std::string summary(const TuningReport& report);

}  // namespace ingot::runtime
