// See state.h.
#include "capture/state.h"

#include "capture/dict_version.h"
#include "capture/ref.h"
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

bool TorchControls::read(Settings& result) const {
    if (settings == nullptr) return true;
    const Ref values = Ref::steal(PyObject_CallNoArgs(settings));
    if (!values) return false;
    int disabled = 0;
    if (!PyArg_ParseTuple(values.get(), "pnnO", &disabled, &result.limit, &result.accumulated,
                          &result.dynamic))
        return false;
    result.disabled = disabled != 0;
    return true;
}

bool TorchControls::allows_recording() const {
    Settings now;
    if (read(now)) return !now.disabled;
    PyErr_Clear();
    return true;
}

bool TorchControls::follow_stance() {
    if (stances == nullptr || version_of(stances) == version) return true;
    static PyObject* const name = PyUnicode_InternFromString("_stance");
    const std::uint64_t now = version_of(stances);
    const Ref stance = Ref::borrow(PyDict_GetItemWithError(stances, name));
    if (stance && stance.get() != seen) {
        const Ref done = Ref::steal(PyObject_CallOneArg(follow, stance.get()));
        if (!done) return false;
        Py_XSETREF(seen, Py_NewRef(stance.get()));
    }
    version = now;
    return true;
}

bool TorchControls::raises_at_breaks() const {
    return flags != nullptr && PyDict_GetItemString(flags, "_error_on_graph_break") == Py_True;
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
