// See plan_text.h.
#include "schedule/plan_text.h"

#include <sstream>

namespace ingot {

namespace {

std::string list(const Sizes& sizes) {
    std::string text = "(";
    for (std::size_t i = 0; i < sizes.size(); ++i)
        text += (i > 0 ? ", " : "") + to_string(sizes[i]);
    return text + ")";
}

std::string list(const std::vector<std::int32_t>& numbers) {
    std::string text;
    for (std::size_t i = 0; i < numbers.size(); ++i)
        text += (i > 0 ? ", #" : "#") + std::to_string(numbers[i]);
    return text;
}

const char* name(BufferPlace p) {
    switch (p) {
        case BufferPlace::Input:
            return "input";
        case BufferPlace::Output:
            return "output";
        case BufferPlace::Arena:
            return "arena";
        case BufferPlace::Frozen:
            return "frozen";
        case BufferPlace::Constant:
            return "constant";
        default:
            return "extern";
    }
}

void write(std::ostream& out, const Plan& plan, std::size_t i) {
    const Buffer& b = plan.buffers[i];
    out << "  #" << i << ": " << name(b.type.dtype) << list(b.type.sizes) << " strides "
        << list(b.strides) << " " << name(b.place);
    if (b.index >= 0) out << " " << b.index;
    if (b.base >= 0) out << " view of #" << b.base;
    if (b.base >= 0 || b.place == BufferPlace::Arena) out << " at " << to_string(b.offset);
    out << "\n";
}

void write(std::ostream& out, const Plan& plan, const Step& step) {
    if (auto* k = std::get_if<KernelStep>(&step)) {
        out << "  kernel " << k->kernel << " "
            << plan.kernels[static_cast<std::size_t>(k->kernel)].name << "(" << list(k->buffers)
            << ")";
        if (!k->sizes.empty()) out << " sizes " << list(k->sizes);
        out << "\n";
        return;
    }
    const auto& e = std::get<ExternStep>(step);
    out << "  " << (e.callee.empty() ? std::string(name(e.prim)) : e.callee) << "("
        << list(e.inputs) << ") -> " << list(e.outputs) << "\n";
}

}  // namespace

std::string to_string(const Plan& plan, bool kernels) {
    std::ostringstream out;
    out << "plan arena " << to_string(plan.arena_bytes) << "\n";
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) write(out, plan, i);
    if (!plan.frozen_steps.empty()) out << "frozen\n";
    for (const Step& s : plan.frozen_steps) write(out, plan, s);
    out << "steps\n";
    for (const Step& s : plan.steps) write(out, plan, s);
    out << "return " << list(plan.output_buffers) << "\n";
    if (kernels)
        for (const Kernel& k : plan.kernels) out << to_string(k);
    return out.str();
}

}  // namespace ingot
