// Custom `autograd.Function`s while recording: their forwards, and their backwards wherever
// PyTorch's engine runs those on promises; see recording.h and custom_function.h.
//
// Such code is recorded on approval: it may do nothing that could be seen outside, so that it can
// be abandoned at any instruction, its calls forgotten, and the function be called for real. Its
// backward, which is recorded once for all calls, must not depend on anything that could be another
// thing by the time at which eager runs it. A function that fails at that is a break from then on.
#include <c10/core/GradMode.h>
#include <opcode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "bindings/errors.h"
#include "capture/captured.h"
#include "capture/custom_function.h"
#include "capture/news.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

/// No handler of the program's catches what abandons its code.
PyObject* abandonment() {
    static PyObject* const type =
        PyErr_NewException("ingot.Abandoned", PyExc_BaseException, nullptr);
    return type;
}

/// Whether the code is PyTorch's own.
bool is_of_torch(Frame frame) {
    const std::string_view module = module_of(frame);
    return module == "torch" || module.starts_with("torch.") || module == "contextlib" ||
           module == "functools";
}

/// Whether nothing but the frame, and perhaps a method bound to it, refers to the object.
bool is_alone_in(Frame frame, PyObject* object) {
    const auto is_it = [&](PyObject* o) {
        return o == object ||
               (o != nullptr && PyCFunction_Check(o) && PyCFunction_GET_SELF(o) == object);
    };
    const auto slots = frame.slots();
    const auto stack = frame.stack();
    return Py_REFCNT(object) <=
           std::ranges::count_if(slots, is_it) + std::ranges::count_if(stack, is_it);
}

/// Whether the frame is that of a generator expression, which is used up where it is written.
bool is_expression(Frame frame) {
    return PyUnicode_CompareWithASCIIString(frame.code()->co_name, "<genexpr>") == 0;
}

bool is_container(PyObject* o) { return PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o); }

/// What stays as it is until a backward: code, and constants of modules that are no user's.
bool stays(PyObject* value) {
    return value == nullptr || value == Py_None || stands_for_itself(value) ||
           PyCFunction_Check(value);
}

at::Tensor tensor_of(PyObject* o) { return is_tensor(o) ? THPVariable_Unpack(o) : at::Tensor(); }

}  // namespace

bool Recording::is_custom_function(std::string_view name, std::span<PyObject* const> arguments) {
    return name.ends_with(".apply") && c10::GradMode::is_enabled() &&
           std::ranges::any_of(arguments, [](PyObject* o) {
               return is_tensor(o) && THPVariable_Unpack(o).requires_grad();
           });
}

void Recording::refuse_effects(Frame frame, const Event& event) {
    const auto& o = event.operands;
    const bool torch = is_of_torch(frame);
    // What a transform of PyTorch's changes, it puts back on its way out.
    const bool for_a_while = torch && strict_ == Strict::Transform;
    const char* const effect = "something else is changed";
    const auto is_own = [&](PyObject* object) {
        if (for_a_while) return true;
        if (world_->find(object) != nullptr) return false;
        if (made_before_ && !made_before_->contains(object)) return true;
        return torch || is_alone_in(frame, object);
    };
    switch (event.operation) {
        case Operation::store_cell:
        case Operation::delete_cell: {  // a variable of its own, or one of a function around it
            const PyCodeObject* code = frame.code();
            if (event.detail >= code->co_nlocalsplus - code->co_nfreevars) throw Puzzle(effect);
            return;
        }
        case Operation::store_global:
            if (for_a_while) return;
            throw Puzzle(effect);
        case Operation::delete_global:
        case Operation::store_name:
        case Operation::delete_name:
            throw Puzzle(effect);
        case Operation::store_attribute:
        case Operation::delete_attribute:
            if (is_function_context(o[0]) ? !torch && strict_ == Strict::Backward : !is_own(o[0]))
                throw Puzzle(effect);
            return;
        case Operation::store_item:
        case Operation::delete_item:
            if (!is_tensor(o[0]) && !is_own(o[0])) throw Puzzle(effect);
            return;
        case Operation::extend_list:
        case Operation::extend_set:
        case Operation::extend_dict:
        case Operation::add_item:
            return;  // of a display that is being made
        case Operation::binary:
            if (is_container(o[0]) && event.detail >= NB_INPLACE_ADD && !is_own(o[0]))
                throw Puzzle(effect);
            return;
        case Operation::import_name:
            if (!for_a_while &&
                PyDict_GetItemWithError(PyImport_GetModuleDict(), event.name) == nullptr)
                throw Puzzle("an import");
            return;
        case Operation::yield_value:
        case Operation::send:
        case Operation::await:
            if (!torch && !(strict_ == Strict::Region && is_expression(frame)))
                throw Puzzle("a generator");
            return;
        case Operation::call:
        case Operation::call_expanded: {
            PyObject* callable = o[0];
            if (PyMethod_Check(callable)) callable = PyMethod_GET_FUNCTION(callable);
            if (PyFunction_Check(callable) || PyType_Check(callable)) return;
            const CallClass c = classify(callable);
            PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
            if ((self == nullptr || PyModule_Check(self)) && o.size() > 1) self = o[1];
            if (reentrant_ && !torch && c.name.ends_with("is_grad_enabled"))
                throw Puzzle("it asks whether gradients are on");
            const bool changes = c.kind == CallKind::Mutator || c.kind == CallKind::SetItem ||
                                 c.kind == CallKind::SetAttr;
            if (c.kind == CallKind::Warning) throw Puzzle("a warning");
            if (changes && (self == nullptr || !is_own(self)) &&
                !(torch && self != nullptr && is_function_context(self)))
                throw Puzzle(effect);
            return;
        }
        default:
            return;
    }
}

/// After the read was guarded: what a backward finds must be there when eager's runs.
void Recording::refuse_what_may_change(Frame frame, const Event& event) {
    if (is_of_torch(frame)) return;
    const auto& o = event.operands;
    const char* const reason = "its backward reads what may change";
    const auto known = [&](PyObject* x) { return x != nullptr && world_->find(x) != nullptr; };
    switch (event.operation) {
        case Operation::read_global: {
            PyObject* value = PyDict_GetItemWithError(o[0], event.name);
            if (value == nullptr) value = PyDict_GetItemWithError(o[1], event.name);
            if (!stays(value)) throw Puzzle(reason);
            return;
        }
        case Operation::read_cell:
            if (known(o[0]) && !stays(PyCell_GET(o[0]))) throw Puzzle(reason);
            return;
        case Operation::read_attribute: {
            if (is_tensor(o[0]) || !known(o[0])) return;
            const bool module = PyModule_Check(o[0]);
            const char* name = module ? PyModule_GetName(o[0]) : nullptr;
            if (name == nullptr) PyErr_Clear();
            const std::string_view place = name == nullptr ? "" : name;
            if (place == "torch" || place.starts_with("torch.") || place == "math") return;
            PyObject* in_class = _PyType_Lookup(Py_TYPE(o[0]), event.name);
            if (in_class != nullptr && PyFunction_Check(in_class)) return;
            if (!module && !PyType_Check(o[0])) throw Puzzle(reason);
            const Quiet quiet;
            const Ref value = Ref::steal(PyObject_GetAttr(o[0], event.name));
            if (!value) PyErr_Clear();
            if (!value || !(stays(value.get()) || PyMethod_Check(value.get())))
                throw Puzzle(reason);
            return;
        }
        case Operation::read_item:
        case Operation::iterate:
        case Operation::next:
        case Operation::unpack:
        case Operation::length:
        case Operation::contains:
        case Operation::truth:
        case Operation::compare:
        case Operation::call:
        case Operation::call_expanded:
            for (PyObject* x : o)
                if (known(x) && is_container(x)) throw Puzzle(reason);
            return;
        default:
            return;
    }
}

/// What is done with a `ctx` in a backward may read what it has saved.
void Recording::note_reading_of_saved(const Event& event) {
    const auto& o = event.operands;
    if (event.operation == Operation::read_attribute) {
        const std::string name = text_of(event.name);
        if (name.find("saved") == std::string::npos && !name.starts_with("__")) return;
    } else if (event.operation == Operation::call || event.operation == Operation::call_expanded) {
        PyObject* callable = PyMethod_Check(o[0]) ? PyMethod_GET_FUNCTION(o[0]) : o[0];
        if (PyFunction_Check(callable)) return;  // what it does is seen
    }
    const bool expanded = event.operation == Operation::call_expanded;
    for (PyObject* one : expanded ? arguments_of(event) : std::vector(o.begin(), o.end()))
        if (const auto found = recorded_.find(one); found != recorded_.end())
            found->second->note_reading();
}

/// What a transform does on its way out is done: its levels are the thread's.
bool Recording::is_cleanup(Frame frame) const {
    return strict_ == Strict::Transform && !abandoned_.empty() && is_of_torch(frame);
}

Verdict Recording::abandoned() {
    if (!PyErr_Occurred()) PyErr_SetString(abandonment(), "not to be seen");
    return Verdict::raise;
}

/// `before` within a custom function or a transform.
Verdict Recording::strictly(Frame frame, const Event& event, PyObject** result) {
    if (!abandoned_.empty()) return is_cleanup(frame) ? Verdict::run : abandoned();
    std::string reason;
    try {
        refuse_effects(frame, event);
        const Verdict verdict = followed_or_guarded(frame, event, result);
        if (strict_ == Strict::Backward) {
            refuse_what_may_change(frame, event);
            note_reading_of_saved(event);
        }
        note_specialised(frame);
        return abandoned_.empty() ? verdict : abandoned();
    } catch (const std::exception& e) {
        reason = e.what();
    }
    Py_CLEAR(*result);
    PyErr_Clear();
    if (abandoned_.empty()) abandoned_ = reason + " at " + place_of(frame);
    return abandoned();
}

void Recording::refuse_function(PyObject* function, const std::string& reason) {
    context_.tree->refused.try_emplace(function, Ref::borrow(function), reason);
}

void Recording::drop_recording(std::size_t calls, const std::string& reason,
                               const std::string& line) {
    over_ = true;
    const struct Stop {  // whatever comes
        const bool goes_on;
        ~Stop() {
            if (Session* session = Session::current(); session != nullptr && goes_on)
                session->stop();
        }
    } stop{!must_be_whole()};
    scope_.reset();
    histories_.restore();
    context_.tree->abandoned.push_back({reason, line, segment_->number});
    segment_->reason = reason;
    Transcript transcript(*recorder_);
    transcript.log.erase(transcript.log.begin() + static_cast<std::ptrdiff_t>(calls),
                         transcript.log.end());
    const std::vector<Ref> gradients = backwards_.gradients();
    fill_all(transcript, still_held(transcript), Frames::Stay);
}

/// The function cannot be recorded: this call goes on without a recording, in which the function
/// was never called, and the next recording breaks where it is.
Verdict Recording::without_recording(const Event& event, std::size_t calls, PyObject* function,
                                     const std::string& name, PyObject** result) {
    const std::string reason = name + " (" + std::exchange(abandoned_, {}) + ")";
    PyErr_Clear();
    Py_CLEAR(*result);
    refuse_function(function, reason);
    custom_.reset();
    recorder_->clear_failure();
    const Session* const session = Session::current();
    const auto frame = session == nullptr ? std::nullopt : session->innermost();
    if (must_be_whole()) {
        note_place(frame);
        try {
            drop_recording(calls, reason, segment_->line);
        } catch (const pybind11::error_already_set&) {  // the call has failed anyway
        }
        return end_program(unsupported(context_, reason, segment_->places));
    }
    drop_recording(calls, reason, frame ? place_of(*frame) : "");
    *result = perform_unobserved(event);
    return *result == nullptr ? Verdict::raise : finish_result(event, result);
}

Verdict Recording::on_custom_function(const Event& event, PyObject* function,
                                      std::span<PyObject* const> arguments, PyObject** result) {
    const char* const name = "a custom autograd.Function";
    if (function == nullptr || !PyType_Check(function) || event.keyword_names != nullptr || over_)
        throw Puzzle(name);
    const bool in_region = strict_ == Strict::Region;
    if (strict_ != Strict::No && !in_region) throw Puzzle("a custom function within another");
    // Its node in PyTorch's graph is looked for by its name.
    if (std::string_view(reinterpret_cast<PyTypeObject*>(function)->tp_name) ==
        "BackwardHookFunction")
        throw Puzzle("a module's hook on gradients");
    const auto refused = context_.tree->refused.find(function);
    if (refused != context_.tree->refused.end()) throw Puzzle(refused->second.second);
    RecordedFunction::Parts parts;
    parts.function = Ref::borrow(function);
    for (PyObject* o : arguments)
        parts.arguments.push_back(Kept::of(o, *world_, *recorder_, *numbers_));
    const std::size_t calls = recorder_->log().size();
    recorder_->clear_failure();
    custom_.emplace(CustomForward{function, {}});
    {
        const Strictly strictly(*this, Strict::Forward);
        const Observed observed;
        *result = perform(event);
    }
    if (abandoned_.empty() && *result == nullptr) {
        if (!recorder_->failure()) return Verdict::raise;  // the program's own
        abandoned_ = *recorder_->failure();
    }
    if (abandoned_.empty()) try {
            note_custom_function(std::move(parts), calls, *result);
        } catch (const std::exception& e) {
            abandoned_ = e.what();
        }
    if (!abandoned_.empty() && in_region) {  // with the region
        custom_.reset();
        Py_CLEAR(*result);
        PyErr_Clear();
        return abandoned();
    }
    if (!abandoned_.empty()) return without_recording(event, calls, function, name, result);
    custom_.reset();
    return finish_result(event, result);
}

void Recording::note_custom_function(RecordedFunction::Parts parts, std::size_t calls,
                                     PyObject* result) {
    const Quiet quiet;
    const Ref outputs =
        Ref::steal(PyTuple_Check(result) ? Py_NewRef(result) : PyTuple_Pack(1, result));
    Ref context;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs.get()); ++i) {
        PyObject* o = PyTuple_GET_ITEM(outputs.get(), i);
        parts.outputs.push_back(tensor_of(o));
        if (!is_tensor(o) || !parts.outputs.back().requires_grad()) continue;
        if (!recorder_->owns(parts.outputs.back())) throw Puzzle("an outside tensor as its result");
        context = Ref::steal(PyObject_GetAttrString(o, "grad_fn"));
        if (!context || !is_function_context(context.get())) throw Puzzle("a result of its own");
    }
    if (!context) return;  // none of its results has a gradient
    const auto log = recorder_->log();
    if (log.size() == calls) throw Puzzle("a forward without an operator");
    for (const auto& [name, value] : custom_->marks)
        parts.marks.emplace_back(name, Kept::of(value.get(), *world_, *recorder_, *numbers_));
    const Ref dict = Ref::steal(PyObject_GetAttrString(context.get(), "__dict__"));
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (dict && PyDict_Next(dict.get(), &at, &key, &value))
        parts.attributes.emplace_back(text_of(key),
                                      Kept::of(value, *world_, *recorder_, *numbers_));
    PyErr_Clear();
    // PyTorch gives a view for an argument that is returned as it is; the forward returned that.
    std::vector<at::Tensor> returned = parts.outputs;
    for (auto call = log.rbegin(); call != log.rend() - static_cast<std::ptrdiff_t>(calls);
         ++call) {
        if (call->op.operator_name().name != "aten::view" || !call->results[0].isTensor()) break;
        for (at::Tensor& t : returned)
            if (t.defined() && t.is_same(call->results[0].toTensor()) &&
                trace::same(t.sym_sizes(), call->arguments[0].toTensor().sym_sizes()))
                t = call->arguments[0].toTensor();
    }
    parts.result.kind = PyTuple_Check(result) ? Kept::Kind::Tuple : Kept::Kind::Tensor;
    if (!PyTuple_Check(result)) parts.result.tensor = returned[0];
    for (Py_ssize_t i = 0; PyTuple_Check(result) && i < PyTuple_GET_SIZE(result); ++i) {
        Kept item;
        const at::Tensor& t = returned[static_cast<std::size_t>(i)];
        if (t.defined()) {
            item.kind = Kept::Kind::Tensor;
            item.tensor = t;
        } else {
            item = Kept::of(PyTuple_GET_ITEM(result, i), *world_, *recorder_, *numbers_);
        }
        parts.result.items.push_back(std::move(item));
    }
    functions_.push_back(parts.function);
    auto function = std::make_shared<RecordedFunction>(std::move(parts));
    recorded_.insert_or_assign(context.get(), function);
    contexts_.push_back(std::move(context));
    recorder_->note_function(calls, std::move(function));
}

void Recording::note_context_store(const Event& event) {
    static const char* const kMarks[] = {"to_save", "dirty_tensors", "non_differentiable",
                                         "materialize_grads", "clear_saved_tensors_on_access"};
    const std::string name = text_of(event.name);
    if (!custom_ || std::ranges::find(kMarks, name) == std::end(kMarks)) return;
    if (name == "dirty_tensors" && PyTuple_Check(event.operands[1]))
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(event.operands[1]); ++i) {
            const at::Tensor t = tensor_of(PyTuple_GET_ITEM(event.operands[1], i));
            if (!t.defined() || !recorder_->owns(t) || recorder_->is_input(t))
                throw Puzzle("a tensor from outside gets a history");
        }
    custom_->marks[name] = Ref::borrow(event.operands[1]);
}

}  // namespace ingot::capture
