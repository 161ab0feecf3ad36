// A Python module for the tracer's tests: records a function and runs the graph through the oracle.
#include <torch/csrc/utils/pybind.h>

#include "ir/print.h"
#include "replay_graph.h"

namespace {

namespace py = pybind11;
using namespace ingot::trace;

/// (outputs or None, reason, graph text, number of extern calls)
py::tuple trace_and_run(const py::function& fn, const std::vector<at::Tensor>& inputs, bool run) {
    Recorder recorder;
    std::vector<at::Tensor> promises, outputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        promises.push_back(recorder.add_input(inputs[i], false, "x" + std::to_string(i)));
    try {
        Recorder::Scope scope(recorder);
        py::object result = fn(promises);
        for (py::handle h : result)
            outputs.push_back(h.is_none() ? at::Tensor() : h.cast<at::Tensor>());
    } catch (py::error_already_set& e) {
        return py::make_tuple(py::none(), recorder.failure().value_or(e.what()), "", 0);
    } catch (const std::exception& e) {
        return py::make_tuple(py::none(), recorder.failure().value_or(e.what()), "", 0);
    }
    try {
        Recording r = recorder.finish(outputs);
        std::string text = ingot::to_string(r.graph);
        if (!run) return py::make_tuple(py::none(), "", text, r.externs.size());
        std::vector<at::Tensor> results = replay_graph(r, inputs);
        py::list list;
        for (at::Tensor& t : results) list.append(t.defined() ? py::cast(t) : py::none());
        return py::make_tuple(list, "", text, r.externs.size());
    } catch (const std::exception& e) {
        return py::make_tuple(py::none(), std::string("replay: ") + e.what(), "", 0);
    }
}

}  // namespace

PYBIND11_MODULE(ingot_trace_check, m) { m.def("trace_and_run", &trace_and_run); }
