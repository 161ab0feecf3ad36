// `torch.utils.checkpoint.checkpoint` while recording: its function runs once, and what it records
// is a region (passes/regions.h), which keeps nothing for the backward but what it was given.
//
// Eager runs the function a second time in the backward. What it does beside computing would be
// done twice there, so it is recorded on approval like a custom function (custom_calls.cpp): no
// effect that is seen outside, no write to memory that was there before, no mode left changed. A
// function that is refused is a break from then on, and runs in eager, twice. Random numbers are
// drawn once and kept: eager draws the same ones again, unless it is told not to.
//
// The reentrant form runs its forward without gradients and has a backward within the backward. It
// gives the same gradients where all that it gives needs one, and what has a history comes in as an
// argument: then it is recorded in the same way. (`torch.autograd.grad` through it, which eager
// refuses, works.)
//
// Flow: from dispatch_call, in the place of PyTorch's function. Costs what the function costs.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_set>

#include "capture/captured.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "trace/tensors.h"

namespace ingot::capture {
namespace {

PyObject* from_python(const char* name) {
    const Quiet quiet;
    const Ref module = Ref::steal(PyImport_ImportModule("ingot._checkpoint"));
    PyObject* found = module ? PyObject_GetAttrString(module.get(), name) : nullptr;
    if (found == nullptr) throw pybind11::error_already_set();
    return found;  // kept
}

/// The event's call with another function in the place of PyTorch's, which may stand in a partial
/// function.
Ref call_of(PyObject* callable, PyObject* function, PyObject* instead) {
    if (callable == function) return Ref::borrow(instead);
    if (std::string_view(Py_TYPE(callable)->tp_name) != "functools.partial")
        throw Puzzle("a checkpoint that is called by another way");
    const Ref inner = Ref::steal(PyObject_GetAttrString(callable, "func"));
    const Ref first = Ref::steal(PyObject_GetAttrString(callable, "args"));
    const Ref names = Ref::steal(PyObject_GetAttrString(callable, "keywords"));
    if (!inner || !first || !names || inner.get() != function)
        throw Puzzle("a checkpoint that is called by another way");
    const Ref before = Ref::steal(PyTuple_Pack(1, instead));
    const Ref all = before ? Ref::steal(PySequence_Concat(before.get(), first.get())) : Ref();
    Ref made = all ? Ref::steal(PyObject_Call(reinterpret_cast<PyObject*>(Py_TYPE(callable)),
                                              all.get(), names.get()))
                   : Ref();
    if (!made) throw pybind11::error_already_set();
    return made;
}

/// The code of the program that asks for it.
PyObject* code_that_asks(Frame frame) {
    Frame asks = frame;
    while (module_of(asks).starts_with("torch.") && asks.caller()) asks = *asks.caller();
    return reinterpret_cast<PyObject*>(asks.code());
}

/// What is computed under gradients although eager has them off, and given back with a history:
/// everything that the function gives must have one, and no argument be given back.
const char* refusal_of_results(PyObject* result, std::span<PyObject* const> arguments) {
    const bool tuple = PyTuple_CheckExact(result);
    const std::size_t count = tuple ? static_cast<std::size_t>(PyTuple_GET_SIZE(result)) : 1;
    for (std::size_t i = 0; i < count; ++i) {
        PyObject* one = tuple ? PyTuple_GET_ITEM(result, static_cast<Py_ssize_t>(i)) : result;
        if (!is_tensor(one)) {
            if (is_plain_constant(one) && tuple) continue;
            return "a result that is no tensor";
        }
        const at::Tensor& t = THPVariable_Unpack(one);
        if (!t.requires_grad()) return "a result without a gradient";
        if (std::ranges::find(arguments, one) != arguments.end())
            return "an argument is its result";
    }
    return nullptr;
}

bool holds_gradients(PyObject* o, int depth) {
    if (o == nullptr || depth == 0) return false;
    if (is_tensor(o)) return THPVariable_Unpack(o).requires_grad();
    if (PyTuple_Check(o) || PyList_Check(o))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
            if (holds_gradients(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return true;
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Check(o) && PyDict_Next(o, &at, &key, &value))
        if (holds_gradients(value, depth - 1)) return true;
    return false;
}

/// Whether the calls read what has a history of its own, and is no argument: the backward within
/// the backward would go on there.
bool reads_histories(std::span<const trace::LoggedCall> calls,
                     std::span<PyObject* const> arguments) {
    std::unordered_set<const c10::TensorImpl*> own;
    for (PyObject* o : arguments)
        if (is_tensor(o)) own.insert(THPVariable_Unpack(o).unsafeGetTensorImpl());
    bool found = false;
    const auto look = [&](const at::Tensor& t) {
        found = found || (t.defined() && t.requires_grad() && !t.is_leaf() &&
                          !own.contains(t.unsafeGetTensorImpl()));
    };
    for (const trace::LoggedCall& call : calls) {
        for (const c10::IValue& v : call.arguments) trace::for_each_tensor(v, look);
        for (const c10::IValue& v : call.results)
            trace::for_each_tensor(v, [&](const at::Tensor& t) {
                if (t.defined()) own.insert(t.unsafeGetTensorImpl());
            });
    }
    return found;
}

}  // namespace

std::optional<std::unordered_set<PyObject*>> Recording::objects_made(Frame innermost) const {
    constexpr std::size_t kMost = 20'000;
    std::unordered_set<PyObject*> found;
    std::vector<PyObject*> stack;
    const auto add = [](PyObject* o, void* parts) {
        static_cast<std::vector<PyObject*>*>(parts)->push_back(o);
        return 0;
    };
    for (std::optional<Frame> f = innermost; f; f = f->caller()) {
        stack.insert(stack.end(), f->slots().begin(), f->slots().end());
        stack.insert(stack.end(), f->stack().begin(), f->stack().end());
    }
    world_->for_each_written([&](PyObject* o) { stack.push_back(o); });
    while (!stack.empty()) {
        PyObject* o = stack.back();
        stack.pop_back();
        if (o == nullptr || !PyObject_IS_GC(o) || is_tensor(o) || PyType_Check(o) ||
            PyModule_Check(o) || PyCode_Check(o) || world_->find(o) != nullptr ||
            !found.insert(o).second)
            continue;
        if (found.size() > kMost) return std::nullopt;
        if (PyFunction_Check(o)) {
            auto* f = reinterpret_cast<PyFunctionObject*>(o);
            for (PyObject* part : {f->func_closure, f->func_defaults, f->func_kwdefaults})
                stack.push_back(part);
        } else if (Py_TYPE(o)->tp_traverse != nullptr) {
            Py_TYPE(o)->tp_traverse(o, add, &stack);
        }
    }
    return found;
}

Verdict Recording::on_checkpoint(Frame frame, const Event& event, PyObject* function,
                                 PyObject** result) {
    static PyObject* const plan = from_python("plan");
    static PyObject* const recorded = from_python("recorded");
    const char* const name = "torch.utils.checkpoint";
    std::vector<PyObject*> operands(event.operands.begin(), event.operands.end());
    Event direct = event;
    direct.operands = operands;
    const Ref asking = call_of(event.operands[0], function, plan);
    operands[0] = asking.get();
    const Ref planned = Ref::steal(perform_unobserved(direct));
    if (!planned) {
        PyErr_Clear();  // eager says what is wrong with the arguments
        throw Puzzle(name);
    }
    const auto refuse = [&](const std::string& why) {
        return Puzzle(std::string(name) + " (" + why + ")");
    };
    if (PyUnicode_Check(planned.get())) throw refuse(text_of(planned.get()));
    const bool reentrant = PyTuple_GET_ITEM(planned.get(), 0) == Py_True;
    const bool preserves = PyTuple_GET_ITEM(planned.get(), 1) == Py_True;
    PyObject* given = PyTuple_GET_ITEM(planned.get(), 2);
    const std::span<PyObject* const> arguments(PySequence_Fast_ITEMS(given),
                                               static_cast<std::size_t>(PyTuple_GET_SIZE(given)));
    const Ref call = call_of(event.operands[0], function, recorded);
    operands[0] = call.get();
    world_->pin(recorded, name);
    const bool plain = !c10::GradMode::is_enabled();
    if (strict_ == Strict::Region || (plain && strict_ == Strict::No)) {
        // Within another it is a part of that; without gradients it is the call.
        if (strict_ == Strict::Region && reentrant) throw refuse("one within another");
        return carried(frame, direct, result);
    }
    if (strict_ != Strict::No || over_) throw refuse("within a custom function");
    PyObject* code = code_that_asks(frame);
    if (const auto refused = context_.tree->refused.find(code);
        refused != context_.tree->refused.end()) {
        if (!reentrant) throw Puzzle(refused->second.second);
        // Its backward may go through what comes in as if that were not part of one node.
        return give_up(refused->second.second);
    }
    if (reentrant)
        for (PyObject* o : arguments)
            if (!is_tensor(o) && holds_gradients(o, 4)) throw refuse("tensors within an argument");
    const std::size_t calls = recorder_->log().size();
    const Modes modes = Modes::now();
    recorder_->clear_failure();
    trace::Recorder::RegionEffects effects;
    std::vector<at::Tensor> tensors;
    for (PyObject* o : arguments)
        if (is_tensor(o)) tensors.push_back(THPVariable_Unpack(o));
    recorder_->begin_region(tensors);
    made_before_ = objects_made(frame);
    {
        const Strictly strictly(*this, Strict::Region);
        const Observed observed;
        reentrant_ = reentrant;
        *result = perform(direct);
        reentrant_ = false;
    }
    made_before_.reset();
    effects = recorder_->end_region();
    if (abandoned_.empty() && *result == nullptr) {
        if (!recorder_->failure()) return Verdict::raise;  // the program's own
        abandoned_ = *recorder_->failure();
    }
    if (abandoned_.empty() && effects.writes) abandoned_ = "it writes to what is outside";
    if (abandoned_.empty() && effects.draws && !preserves) abandoned_ = "it draws other numbers";
    if (abandoned_.empty() && !(Modes::now() == modes)) abandoned_ = "it leaves a mode changed";
    if (abandoned_.empty() && reentrant) {
        if (const char* why = refusal_of_results(*result, arguments)) abandoned_ = why;
        if (reads_histories(recorder_->log().subspan(calls), arguments))
            abandoned_ = "it reads what has a history";
    }
    if (!abandoned_.empty()) return without_recording(event, calls, code, name, result);
    return finish_result(event, result);
}

}  // namespace ingot::capture
