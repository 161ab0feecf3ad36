// See state.h.
#include "capture/state.h"

#include "capture/segment_program.h"

namespace ingot::capture {

void Counters::add(const Counters& o) {
    calls += o.calls;
    replays += o.replays;
    recordings += o.recordings;
    eager_calls += o.eager_calls;
    guard_failures += o.guard_failures;
    breaks += o.breaks;
    graphs += o.graphs;
    training += o.training;
    operators += o.operators;
    kernels += o.kernels;
    externs += o.externs;
    record_seconds += o.record_seconds;
    compile_seconds += o.compile_seconds;
}

PyObject* Counters::as_dict() const {
    return Py_BuildValue("{sLsLsLsLsLsLsLsLsLsLsLsdsd}", "calls", calls, "replays", replays,
                         "recordings", recordings, "eager_calls", eager_calls, "guard_failures",
                         guard_failures, "breaks", breaks, "graphs", graphs, "training", training,
                         "operators", operators, "kernels", kernels, "externs", externs,
                         "record_seconds", record_seconds, "compile_seconds", compile_seconds);
}

State& state() {
    static auto* const instance = [] {
        auto* made = new State;
        made->arena_of_steps = std::make_shared<ArenaOfSteps>();
        return made;
    }();
    return *instance;
}

}  // namespace ingot::capture
