// torch.func while recording: vmap, grad, vjp, jvp, jacrev, jacfwd, hessian, linearize's parts.
//
// A transform is Python around levels that PyTorch keeps for the thread: tensors are wrapped for a
// level, the program's function runs on the wrappers, and what comes out is unwrapped. The wrappers
// hold promises, so each operator of the program comes to the recorder taken apart: batched, or
// with what its gradient needs. A segment cannot end within a level, since no replay could enter it
// again at that place: so a transform is recorded on approval, like a custom function
// (custom_calls.cpp). What would break within it has the call run eagerly, and be a break of its
// own from then on.
//
// Flow: from dispatch_call, before anything of the transform runs. Cost: the levels' own.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_set>

#include "bindings/lock.h"
#include "capture/captured.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "trace/one_thread.h"
#include "trace/tensors.h"

namespace ingot::capture {
namespace {

using bindings::Pending;

/// The name of the module that the function's code looks its globals up in.
std::string_view home_of(PyObject* function) {
    PyObject* globals = reinterpret_cast<PyFunctionObject*>(function)->func_globals;
    PyObject* name = PyDict_GetItemString(globals, "__name__");
    const char* text = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
    return text == nullptr ? "" : text;
}

/// The code of the program that asks for the transform.
PyObject* code_that_asks(Frame frame) {
    Frame asks = frame;
    while (module_of(asks).starts_with("torch.") && asks.caller()) asks = *asks.caller();
    return reinterpret_cast<PyObject*>(asks.code());
}

/// What vmap registers at its first use is no part of a program; a lock is taken for it.
void register_decompositions() {
    static const bool once = [] {
        const Quiet quiet;
        const Ref module = Ref::steal(PyImport_ImportModule("torch._functorch.predispatch"));
        const Ref done =
            module
                ? Ref::steal(PyObject_CallMethod(module.get(), "lazy_load_decompositions", nullptr))
                : Ref();
        if (!done) PyErr_Clear();
        return true;
    }();
    (void)once;
}

/// How many levels are open. PyTorch's header for them needs one that its packages do not bring.
long open_levels() {
    const Pending pending;
    static PyObject* const module = PyImport_ImportModule("torch._C._functorch");
    const Ref depth =
        module == nullptr
            ? Ref()
            : Ref::steal(PyObject_CallMethod(module, "get_dynamic_layer_stack_depth", nullptr));
    if (!depth) throw pybind11::error_already_set();
    return PyLong_AsLong(depth.get());
}

void close_levels(long depth) {
    static PyObject* const module = PyImport_ImportModule("torch._C._functorch");
    if (open_levels() <= depth) return;
    const Pending pending;
    const Ref done = Ref::steal(
        PyObject_CallMethod(module, "pop_dynamic_layer_stack_and_undo_to_depth", "l", depth));
    if (!done) throw pybind11::error_already_set();
}

bool is_wrapper(const at::Tensor& t) {
    return t.key_set().has(c10::DispatchKey::FuncTorchBatched) ||
           t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
}

}  // namespace

bool Recording::is_transform(PyObject* function) {
    const std::string_view home = home_of(function);
    return home == "torch._functorch.vmap" || home == "torch._functorch.eager_transforms";
}

Verdict Recording::on_transform(Frame frame, const Event& event, PyObject** result) {
    const char* const name = "torch.func";
    if (strict_ == Strict::Transform) return Verdict::run;
    if (strict_ != Strict::No || over_) throw Puzzle("torch.func within a custom function");
    PyObject* code = code_that_asks(frame);
    if (const auto refused = context_.tree->refused.find(code);
        refused != context_.tree->refused.end())
        throw Puzzle(refused->second.second);
    unrecorded([] { register_decompositions(); });
    const std::size_t calls = recorder_->log().size();
    const long before = open_levels();
    recorder_->clear_failure();
    {
        const Strictly strictly(*this, Strict::Transform);
        const Observed observed;
        *result = perform(event);
    }
    if (abandoned_.empty() && *result == nullptr) {
        if (!recorder_->failure()) return Verdict::raise;  // the program's own
        abandoned_ = *recorder_->failure();
    }
    close_levels(before);
    if (!abandoned_.empty()) return without_recording(event, calls, code, name, result);
    note_functions_of_level(*result);
    return finish_result(event, result);
}

void Recording::note_functions_of_level(PyObject* result) {
    if (PyTuple_Check(result) || PyList_Check(result)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); ++i)
            note_functions_of_level(PySequence_Fast_GET_ITEM(result, i));
    } else if (!is_tensor(result) && !PyDict_Check(result) && !is_plain_constant(result)) {
        level_functions_.push_back(Ref::borrow(result));
    }
}

std::vector<at::Tensor> Recording::still_held(const Transcript& transcript) const {
    std::vector<at::Tensor> held = transcript.live(contexts_);
    std::unordered_set<c10::TensorImpl*> seen;
    for (const at::Tensor& t : held) seen.insert(t.unsafeGetTensorImpl());
    const auto hold = [&](const at::Tensor& t) {
        if (t.defined() && trace::is_promise(t) && seen.insert(t.unsafeGetTensorImpl()).second)
            held.push_back(t);
    };
    const auto is_held = [](const Ref& f) { return Py_REFCNT(f.get()) > 1; };
    if (std::ranges::none_of(level_functions_, is_held)) return held;
    for (const trace::InputSource& s : transcript.inputs) hold(s.promise);
    for (const trace::LoggedCall& call : transcript.log)
        for (const c10::IValue& r : call.results) trace::for_each_tensor(r, hold);
    return held;
}

/// A transform differentiates: PyTorch's engine runs on tensors of its level, and what it calls
/// comes to the recorder with the rest.
Verdict Recording::on_backward_of_level(const Event& event, PyObject** result) {
    const Ref inputs = Ref::steal(PySequence_List(event.operands[1]));
    if (!inputs) throw pybind11::error_already_set();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(inputs.get()); ++i) {
        PyObject* o = PyList_GET_ITEM(inputs.get(), i);
        if (!is_tensor(o) || !THPVariable_CheckExact(o) || !is_wrapper(THPVariable_Unpack(o)))
            throw Puzzle("a backward of another level");
    }
    recorder_->clear_failure();
    const std::size_t calls = recorder_->log().size();
    const trace::OneThread here;
    *result = perform_unobserved(event);
    return carried_out(event, calls, result);
}

/// Whether a transform says what it differentiates by, which is a tensor of its own level.
bool Recording::marks_for_level(std::string_view name, std::span<PyObject* const> all) const {
    return strict_ == Strict::Transform && name == "Tensor.requires_grad_" && all.size() == 1 &&
           THPVariable_CheckExact(all[0]) && is_wrapper(THPVariable_Unpack(all[0]));
}

Verdict Recording::on_level(const std::string& name, Frame frame, const Event& event,
                            std::span<PyObject* const> all, PyObject** result) {
    if (strict_ != Strict::Transform) throw Puzzle("a call of " + name);
    read_arguments(all, 8);
    for (PyObject* o : all)
        if (is_tensor(o) && !THPVariable_CheckExact(o))
            throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(o)->tp_name);
    return any_tensor(all) ? carried(frame, event, result) : Verdict::run;
}

}  // namespace ingot::capture
