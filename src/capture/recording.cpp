// Observing the interpreter: what each operation means for a recording; see recording.h.
#include "capture/recording.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <opcode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "bindings/errors.h"
#include "capture/captured.h"
#include "capture/keys.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/torch_words.h"
#include "trace/known_numbers.h"

namespace ingot::capture {
namespace {

thread_local Recording* current_recording = nullptr;

/// The tensors that C code asks for their numbers: places in a list, tuple or text.
std::vector<PyObject*> tensors_as_places(const Event& event) {
    static PyObject* const get = PyUnicode_InternFromString("__getitem__");
    static PyObject* const set = PyUnicode_InternFromString("__setitem__");
    static PyObject* const del = PyUnicode_InternFromString("__delitem__");
    PyObject *container = event.operands[0], *key = event.operands[1];
    std::vector<PyObject*> found;
    if (is_tensor(key)) found.push_back(key);
    if (PySlice_Check(key)) {
        const auto* slice = reinterpret_cast<PySliceObject*>(key);
        for (PyObject* part : {slice->start, slice->stop, slice->step})
            if (is_tensor(part)) found.push_back(part);
    }
    if (found.empty() || is_tensor(container) || PyDict_Check(container)) return {};
    PyObject* method =
        _PyType_Lookup(Py_TYPE(container), event.operation == Operation::read_item    ? get
                                           : event.operation == Operation::store_item ? set
                                                                                      : del);
    if (method != nullptr && PyFunction_Check(method)) return {};
    return found;
}

bool is_in_place(int detail) { return detail >= NB_INPLACE_ADD && detail <= NB_INPLACE_XOR; }

/// Whether autograd refuses a change in place. Its error may name the function that has made a
/// view, in eager one of eager's, and how views hang together only eager's own show in all cases.
bool refuses_a_change(const std::string& error) {
    return error.find("modified inplace") != std::string::npos;
}

}  // namespace

std::string_view module_of(Frame frame) {
    PyObject* name = PyDict_GetItemString(frame.globals(), "__name__");
    const char* text = name != nullptr && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
    return text == nullptr ? "" : text;
}

bool is_lock_of_functools(Frame frame, PyObject* object) {
    return std::string_view(Py_TYPE(object)->tp_name) == "_thread.RLock" &&
           module_of(frame) == "functools";
}

std::string place_of(Frame frame) { return place_of_frame(frame).text(); }

Recording* Recording::current() { return current_recording; }

Recording::Recording(RecordingContext context, std::shared_ptr<SegmentList> list)
    : context_(std::move(context)),
      outer_(current_recording),
      handled_(Ref::steal(PyErr_GetHandledException())) {
    current_recording = this;
    begin_segment(std::move(list));
}

Recording::~Recording() {
    scope_.reset();
    current_recording = outer_;
}

PyObject* Recording::add_slot(Py_ssize_t index, PyObject* value, const std::string& name,
                              bool replaceable) {
    try {
        if (replaceable)
            if (PyObject* own = met_number(
                    value, "slot " + std::to_string(index),
                    [&] { return world_->add_slot(index, value, name); }, true))
                return own;
        world_->add_slot(index, value, name);
    } catch (const Puzzle& e) {
        if (refusal_.empty()) refusal_ = e.what();
    }
    return value;
}

PyObject* Recording::met_number(PyObject* value, const std::string& path,
                                const std::function<std::int32_t()>& add_node, bool argument) {
    if (value == nullptr) return nullptr;
    GuardSet& guards = segment_->guards;
    const auto node_for = [&](Check check) {
        const std::int32_t node = add_node();
        guards.nodes[static_cast<std::size_t>(node)].demand.check = check;
        return node;
    };
    if (PyFloat_CheckExact(value)) {
        const double example = PyFloat_AS_DOUBLE(value);
        // PyTorch's symbols stand for finite numbers.
        if (context_.backend != nullptr && !std::isfinite(example)) return nullptr;
        std::string name = history().float_of(path, example, context_.dynamic);
        if (name.empty()) return nullptr;
        const std::int32_t node = node_for(Check::Float);
        std::string text = guards.path(guards.nodes[static_cast<std::size_t>(node)].place);
        return numbers_
            ->add_float(guards.floats.given(node, example, std::move(name), std::move(text)))
            .get();
    }
    const auto number = numbers_->value_of(value);
    if (!number || number->is_heap_allocated()) return nullptr;
    const std::int64_t n = number->as_int_unchecked();
    // Most numbers within containers never change: they are not taken for sizes at once.
    const Dynamic dynamic =
        !argument && context_.dynamic == Dynamic::Always ? Dynamic::WhenChanged : context_.dynamic;
    const trace::SymbolicSize size = history().number_of(path, n, dynamic);
    if (size.name.empty()) return nullptr;
    const c10::SymInt symbol = recorder_->add_number(n, size);
    PyObject* own = numbers_->add_number(symbol).get();  // held there
    guards.sizes().add_number(node_for(Check::Integer), trace::unwrap(symbol));
    if (scope_) scope_->take_composites_apart();
    return own;
}

void Recording::met_tensor(PyObject* tensor, std::int32_t node) {
    const at::Tensor& t = THPVariable_Unpack(tensor);
    if (t.is_cuda()) numbers_->found_gpu(t.device());
    GuardSet& guards = segment_->guards;
    if (!THPVariable_CheckExact(tensor) || (t.requires_grad() && !context_.settings.training) ||
        t.is_inference() || recorder_->owns(t))
        return;
    TensorFacts& facts = *guards.nodes[static_cast<std::size_t>(node)].demand.tensor;
    if (numbers_->has_symbolic_sizes(tensor)) {  // a guard says that it is the same object
        facts.any_size = true;
        return;
    }
    const std::string path = guards.key(guards.nodes[static_cast<std::size_t>(node)].place);
    const auto sizes = history().sizes_of(path, tensor, context_.dynamic);
    if (std::ranges::all_of(sizes, [](const auto& s) { return s.name.empty(); })) return;
    try {
        const at::Tensor promise = numbers_->add_tensor(tensor, sizes);
        facts.any_size = true;
        guards.sizes().add_tensor(node, trace::unwrap(promise.sym_sizes()),
                                  trace::unwrap(promise.sym_strides()));
        if (scope_) scope_->take_composites_apart();
    } catch (const Error& e) {
        throw Puzzle(e.what());
    }
}
void Recording::pin(PyObject* object, const char* name) { world_->pin(object, name); }
bool Recording::start() {
    const char* const obstacle = segment_->guards.modes.obstacle();
    if (obstacle == nullptr) {
        open_scope();
        depth_ = c10::impl::TorchDispatchModeTLS::stack_len();
    }
    if (obstacle != nullptr || !refusal_.empty())
        if (give_up(obstacle != nullptr ? obstacle : std::exchange(refusal_, {})) == Verdict::raise)
            PyErr_Clear();  // `conclude` raises it
    return !error_;
}
void Recording::open_scope() {
    scope_ = std::make_unique<trace::Recorder::Scope>(*recorder_);
    if (at::globalContext().hasCUDA()) scope_->take_composites_apart();  // no input is known yet
}
Recording::Pause::Pause(Recording& recording)
    : recording_(recording), open_(recording.scope_ != nullptr) {
    recording.scope_.reset();
    if (trace::RecorderState* const recorder = trace::topmost_recorder())
        backward_ = std::make_unique<trace::WithoutMode>(*recorder);
}
Recording::Pause::~Pause() {
    backward_.reset();
    if (open_) recording_.open_scope();
}
void Recording::answer_first(Operation operation, PyObject* result) {
    first_ = operation;
    first_result_ = Ref::borrow(result);
}

bool Recording::is_our_tensor(PyObject* o) const {
    return is_tensor(o) && recorder_->owns(THPVariable_Unpack(o));
}

void Recording::refuse_unknown(std::span<PyObject* const> tensors, const char* reason) {
    for (PyObject* o : tensors)
        if (!is_our_tensor(o) ||
            !trace::known_number(recorder_->log(), THPVariable_Unpack(o), *recorder_->symbols()))
            throw Puzzle(reason);
}

bool Recording::assume_no_raise(Frame frame, const Event& event, PyObject** result) {
    PyObject* o = event.operands[0];
    if (event.operation != Operation::truth || !is_our_tensor(o) || !THPVariable_CheckExact(o))
        return false;
    // Where it does not hold in this very call, that begins again in eager (may_begin_again).
    if (!again_ || strict_ != Strict::No || has_finalizers_ || !world_->undo().possible())
        return false;
    const at::Tensor& t = THPVariable_Unpack(o);
    if (!t.is_cpu() || t.sym_numel().maybe_as_int() != 1 || t.is_complex()) return false;
    const std::optional<bool> raising = frame.raising_truth();
    if (!raising || trace::known_number(recorder_->log(), t, *recorder_->symbols())) return false;
    const at::Tensor whole = t.detach();
    if (*raising)
        recorder_->assume(whole.eq(0));
    else
        recorder_->assume(t.scalar_type() == at::kBool ? whole : whole.ne(0));
    *result = PyBool_FromLong(*raising ? 0 : 1);
    return true;
}

void Recording::read_arguments(std::span<PyObject* const> arguments, int depth) {
    for (PyObject* o : arguments)
        if (o != nullptr) world_->read_whole(o, depth);
}

namespace {

/// Whether the code is how PyTorch puts a custom operator's gradient around the operator: Python
/// that an operator runs, which decides by what a recording has guarded anyway.
bool is_of_custom_operators(PyCodeObject* code) {
    const std::string_view file = PyUnicode_AsUTF8(code->co_filename);
    return file.ends_with("/torch/_library/autograd.py");
}

/// Whether the code is a method of PyTorch's symbolic numbers, which C++ calls for what it needs of
/// one (`SymInt.__index__`): what it fixes is guarded, and the program has no part in it. A break
/// in there would end the recording in the midst of an operator.
bool is_of_symbols(PyCodeObject* code) {
    static const std::unordered_set<PyCodeObject*> codes = [] {
        std::unordered_set<PyCodeObject*> all;
        const Ref torch = Ref::steal(PyImport_ImportModule("torch"));
        for (const char* name : {"SymInt", "SymFloat", "SymBool"}) {
            const Ref type = torch ? Ref::steal(PyObject_GetAttrString(torch.get(), name)) : Ref();
            if (!type || !PyType_Check(type.get())) continue;
            PyObject* dict = reinterpret_cast<PyTypeObject*>(type.get())->tp_dict;
            Py_ssize_t position = 0;
            PyObject *key = nullptr, *value = nullptr;
            while (PyDict_Next(dict, &position, &key, &value))
                if (PyFunction_Check(value))
                    all.insert(
                        reinterpret_cast<PyCodeObject*>(Py_NewRef(PyFunction_GET_CODE(value))));
        }
        PyErr_Clear();
        return all;
    }();
    const std::string_view file = PyUnicode_AsUTF8(code->co_filename);
    return codes.contains(code) || file.ends_with("/torch/fx/experimental/sym_node.py");
}

}  // namespace

Verdict Recording::entered(Frame frame, Entry entry) {
    if (entry == Entry::resumed) suspended_.erase(frame.slots().data());
    if (over_) return Verdict::hand_back;
    // Python code that PyTorch runs to describe an operator (a meta function): not the program's.
    if ((scope_ != nullptr || strict_ == Strict::Backward) &&
        c10::impl::TorchDispatchModeTLS::stack_len() < depth_)
        return Verdict::hand_back;
    // What it calls comes here again: `Function.apply`, and the program's own parts of a gradient.
    if (is_of_custom_operators(frame.code()) || is_cleanup(frame)) return Verdict::hand_back;
    if (numbers_ != nullptr && numbers_->any() && is_of_symbols(frame.code()))
        return Verdict::hand_back;
    try {
        const Verdict verdict = enter(frame, entry);
        return abandoned_.empty() ? verdict : abandoned();
    } catch (...) {
        return thrown();
    }
}

Verdict Recording::enter(Frame frame, Entry entry) {
    auto* function = reinterpret_cast<PyObject*>(frame.function());
    try {
        constants_.add(frame.code(), [this](PyObject* tuple) { numbers_->specialise(tuple); });
        if (function == nullptr) return Verdict::run;
        if (entry == Entry::called) note_finalizer(frame, function);
        if (over_) return Verdict::hand_back;
        if (world_->find(function) == nullptr && entry == Entry::called) {
            // A special method: found by C code in the class of the first argument.
            const auto slots = frame.slots();
            PyObject* self = frame.code()->co_argcount > 0 && !slots.empty() ? slots[0] : nullptr;
            if (self != nullptr && !PyCell_Check(self)) {
                world_->read_special_method(Py_TYPE(self), function);
                if (PyType_Check(self))
                    world_->read_special_method(reinterpret_cast<PyTypeObject*>(self), function);
            }
        }
        world_->read_function(function);
        if (world_->find(frame.globals()) == nullptr) world_->pin(frame.globals(), "globals()");
        if (entry == Entry::called && method_needs_data(function)) {
            // Called by C code, say by `sorted` for its key; else the call has broken already.
            const auto slots = frame.slots();
            const bool key =
                text_of(reinterpret_cast<PyFunctionObject*>(function)->func_name) == "__hash__";
            if (!slots.empty() && is_tensor(slots[0]) && !may_go_backward(slots[0], function) &&
                !(key && world_->fix_tensor(slots[0]))) {
                return give_up("the data of a tensor (" + callable_name(function) + ")");
            }
        }
        Mark mark = state().mark_of(function);
        if (mark == Mark::None) mark = mark_of_torch(function);
        if (mark == Mark::Disable && entry == Entry::called)  // by C code; else the call breaks
            return give_up("a function that is not to be compiled");
        if (mark == Mark::DisableOnce) {
            left_out_.insert(function);
            if (PyObject* within = function_within(function)) left_out_.insert(within);
        }
    } catch (const std::exception& e) {
        return give_up(e.what());
    }
    return Verdict::run;
}

Verdict Recording::before(Frame frame, const Event& event, PyObject** result) {
    if (over_) return Verdict::run;
    if (first_ && *first_ == event.operation) {
        first_.reset();
        *result = first_result_.release();
        return Verdict::handled;
    }
    if (strict_ != Strict::No) return strictly(frame, event, result);
    try {
        try {
            const Verdict verdict = followed_or_guarded(frame, event, result);
            if (numbers_->any()) note_specialised(frame);
            if (verdict == Verdict::run) note_moved(event);
            return verdict;
        } catch (const Handover& e) {
            return leave_at(frame, event, e.what());
        } catch (const Eagerly& e) {
            give_up(e.what());
            return Verdict::run;
        } catch (const Departure& e) {
            if (!e.kept && !holds_finalizers(frame))
                return break_at(frame, event, e.what(), result);
            const Verdict verdict = give_up(e.what());
            if (e.kept) segment_->guards.drop_all();  // eager whatever comes, and nothing is held
            return verdict;
        } catch (const Puzzle& e) {
            note_specialised(frame);
            return break_at(frame, event, e.what(), result);
        } catch (const Error& e) {
            return break_at(frame, event, std::string("internal: ") + e.what(), result);
        }
    } catch (...) {
        return thrown();
    }
}

/// What could be made real has been: this is the error of an operator that was put off, or some
/// other one that the program is to see.
Verdict Recording::thrown() {
    try {
        throw;
    } catch (pybind11::error_already_set& e) {
        e.restore();
    } catch (...) {
        if (!PyErr_Occurred()) bindings::with_python_errors([]() -> PyObject* { throw; });
    }
    return Verdict::raise;
}

Verdict Recording::followed_or_guarded(Frame frame, const Event& event, PyObject** result) {
    const auto done = [&] { return *result != nullptr ? Verdict::handled : Verdict::raise; };
    met_ = numbers_->met();
    refuse_known_asking(frame);
    if (!left_out_.empty()) leave_out(frame, event);
    if (numbers_->any() && follow_numbers(frame, event, result)) return done();
    const Verdict verdict = guarded(frame, event, result);
    return verdict == Verdict::run && follow_met(frame, event, result) ? done() : verdict;
}

bool Recording::follow_met(Frame frame, const Event& event, PyObject** result) {
    if (over_ || numbers_->met() == met_) return false;
    met_ = numbers_->met();
    return follow_numbers(frame, event, result);
}

void Recording::note_specialised(Frame frame) {
    if (over_) return;
    const std::size_t count = recorder_->symbols()->specialised().size();
    if (specialised_at_.size() < count) specialised_at_.resize(count, place_of(frame));
}

Verdict Recording::guarded(Frame frame, const Event& event, PyObject** result) {
    const auto& o = event.operands;
    switch (event.operation) {
        case Operation::read_global:
            for (PyObject* dict : {o[0], o[1]}) {
                if (world_->find(dict) == nullptr) world_->pin(dict, "globals()");
                world_->read_dict(dict, event.name);
                if (PyDict_GetItemWithError(dict, event.name) != nullptr) break;
            }
            return Verdict::run;
        case Operation::read_name:
            throw Puzzle("code that is no function");
        case Operation::read_cell:
            world_->read_cell(o[0]);
            return Verdict::run;
        case Operation::read_attribute:
            if (is_tensor(o[0])) return on_tensor_attribute(frame, event, result);
            resolve_operator(o[0], event.name);
            world_->read_attribute(o[0], event.name);
            return Verdict::run;
        case Operation::read_item:
            refuse_unknown(tensors_as_places(event), "a tensor is an index");
            if (any_tensor(o) && !PyDict_Check(o[0])) {
                read_arguments(o, 4);
                if (is_tensor(o[0])) return carried(frame, event, result);
            }
            world_->read_special_methods(o[0]);
            if (PyDict_Check(o[0])) read_key(*world_, o[1], o[0]);
            world_->read_item(o[0], o[1]);
            return Verdict::run;
        case Operation::store_cell:
        case Operation::store_global:
        case Operation::store_attribute:
        case Operation::delete_cell:
        case Operation::delete_global:
        case Operation::delete_attribute:
            on_store(event);
            return Verdict::run;
        case Operation::delete_item:
            refuse_unknown(tensors_as_places(event), "a tensor is an index");
            on_store(event);
            return Verdict::run;
        case Operation::store_item:
            if (is_tensor(o[0])) {
                read_arguments(o, 4);
                return carried(frame, event, result);
            }
            refuse_unknown(tensors_as_places(event), "a tensor is an index");
            on_store(event);
            return Verdict::run;
        case Operation::call:
            return on_call(frame, event, result);
        case Operation::call_expanded:
            return on_expanded_call(frame, event, result);
        case Operation::unary:
        case Operation::binary:
        case Operation::compare:
        case Operation::contains:
        case Operation::truth:
            return on_operator(frame, event, result);
        case Operation::identical:
            world_->relate(o[0], o[1]);
            return Verdict::run;
        case Operation::await:
            world_->read_special_methods(o[0]);
            world_->read_whole(o[0], 1);
            return Verdict::run;
        case Operation::send:
            // Its code goes on, and replays would neither do what it does nor move it.
            if (const Known* k = world_->find(o[0]);
                k != nullptr && !has_python_layout(Py_TYPE(o[0])))
                throw Puzzle("a generator from outside");
            return Verdict::run;
        case Operation::is_none:
        case Operation::import_star:
        case Operation::yield_value:
        case Operation::read_local:
        case Operation::match_exception:
            return Verdict::run;
        case Operation::hash:
            for (std::size_t i = 0; i < o.size(); ++i) {
                read_key(*world_, o[i], nullptr);
                for (std::size_t j = 0; j < i; ++j)
                    if (!is_plain_constant(o[i])) world_->relate(o[i], o[j]);
            }
            return Verdict::run;
        case Operation::iterate:
            if (world_->find(o[0]) != nullptr && world_->can_move(o[0]))
                return Verdict::run;  // it gives itself
            [[fallthrough]];
        case Operation::unpack:
        case Operation::length:
            world_->read_special_methods(o[0]);
            world_->read_whole(o[0], 1);
            return Verdict::run;
        case Operation::next:
            if (const Known* k = world_->find(o[0]);
                k != nullptr && !has_python_layout(Py_TYPE(o[0]))) {
                if (strict_ != Strict::No || !world_->can_move(o[0]))
                    throw Puzzle("an iterator from outside");
                *result = world_->move(o[0]).release();  // nullptr at its end
                return Verdict::handled;
            }
            return Verdict::run;
        case Operation::extend_list:
        case Operation::extend_set:
        case Operation::extend_dict:
            world_->read_whole(o[1], 1);
            world_->write_whole(o[0], false);  // a display that was begun before a break
            return Verdict::run;
        case Operation::add_item:
            world_->write_whole(o[0], false);
            return Verdict::run;
        case Operation::format:
            if (any_tensor(o)) throw Puzzle("a tensor as text");
            world_->read_special_methods(o[0]);
            if (PyType_Check(o[0])) world_->read_type_names(o[0], nullptr);
            read_arguments(o, 4);
            return Verdict::run;
        case Operation::enter_context: {
            static PyObject* const enter = PyUnicode_InternFromString("__enter__");
            static PyObject* const exit = PyUnicode_InternFromString("__exit__");
            if (state().mark_of(reinterpret_cast<PyObject*>(Py_TYPE(o[0]))) == Mark::Annotation) {
                if (world_->find(o[0]) != nullptr) throw Puzzle("an annotation from outside");
                // It does nothing, and so has nothing to undo, wherever the program leaves it.
                if (PyObject_SetAttrString(o[0], "run_callbacks_on_exit", Py_False) != 0)
                    return Verdict::raise;
                *result = Py_NewRef(o[0]);
                return Verdict::handled;
            }
            if (is_lock_of_functools(frame, o[0])) {
                holds_locks_ = true;
                return Verdict::run;
            }
            PyObject* method = world_->read_class(Py_TYPE(o[0]), enter);
            world_->read_class(Py_TYPE(o[0]), exit);
            if (method != nullptr && !PyFunction_Check(method))
                throw Puzzle(std::string("a context of type ") + Py_TYPE(o[0])->tp_name);
            return Verdict::run;
        }
        case Operation::exit_context:  // that of a context in C was left to CPython
            world_->read_method(o[0]);
            return Verdict::run;
        case Operation::match_class:
            read_class_pattern(event);
            return Verdict::run;
        case Operation::match_keys:
        case Operation::match_kind:
            for (PyObject* operand : o)
                if (operand != nullptr) world_->read_special_methods(operand);
            world_->read_whole(o[0], 2);
            return Verdict::run;
        case Operation::import_name: {
            PyObject* modules = PyImport_GetModuleDict();
            if (PyDict_GetItemWithError(modules, event.name) != nullptr) return Verdict::run;
            *result = import_first(event);
            return *result == nullptr ? Verdict::raise : Verdict::handled;
        }
        case Operation::import_from:
            world_->read_attribute(o[0], event.name);
            return Verdict::run;
        case Operation::store_name:
        case Operation::delete_name:
            throw Puzzle("code that is no function");
    }
    return Verdict::run;
}

/// `torch.ops.library.operator` and its overloads are looked up at their first use and are
/// attributes from then on: the lookup is no part of the program.
void Recording::resolve_operator(PyObject* object, PyObject* name) {
    static PyObject* const operators = PyImport_ImportModule("torch._ops");
    static const auto kind = [](const char* type) {
        return operators == nullptr ? nullptr : PyObject_GetAttrString(operators, type);
    };
    static PyObject* const kinds[] = {kind("_Ops"), kind("_OpNamespace"), kind("OpOverloadPacket"),
                                      kind("OpOverload")};
    if (std::ranges::find(kinds, reinterpret_cast<PyObject*>(Py_TYPE(object))) == std::end(kinds))
        return;
    PyObject** dict = _PyObject_GetDictPtr(object);
    if (dict != nullptr && *dict != nullptr && PyDict_GetItemWithError(*dict, name) != nullptr)
        return;
    PyObject* of_class = _PyType_Lookup(Py_TYPE(object), name);
    if (of_class != nullptr && std::string_view(Py_TYPE(of_class)->tp_name) != "cached_property")
        return;
    // What is no operator raises again when the program reads it.
    if (const Ref found = Ref::steal(unrecorded([&] { return PyObject_GetAttr(object, name); }));
        !found)
        PyErr_Clear();
}

PyObject* Recording::import_first(const Event& event) {
    const Ref import = Ref::borrow(PyDict_GetItemString(PyEval_GetBuiltins(), "__import__"));
    if (!import) {
        PyErr_SetString(PyExc_ImportError, "__import__ not found");
        return nullptr;
    }
    return unrecorded([&] {
        return PyObject_CallFunctionObjArgs(import.get(), event.name, event.operands[0], Py_None,
                                            event.operands[1], event.operands[2], nullptr);
    });
}

void Recording::on_store(const Event& event) {
    const auto& o = event.operands;
    switch (event.operation) {
        case Operation::store_cell:
        case Operation::delete_cell:
            if (event.operation == Operation::delete_cell) world_->read_cell(o[0]);
            world_->write_cell(o[0]);
            return;
        case Operation::store_global:
        case Operation::delete_global:
            if (world_->find(o[0]) == nullptr) world_->pin(o[0], "globals()");
            world_->write_dict(o[0], event.name, event.operation == Operation::delete_global);
            return;
        case Operation::store_attribute:
        case Operation::delete_attribute:
            if (is_tensor(o[0])) {
                if (o.size() > 1 && o[1] == Py_None && text_of(event.name) == "grad") {
                    const std::size_t calls = recorder_->log().size();
                    world_->write_gradient(o[0], calls == 0);
                    return world_->undo().note_gradient(o[0], THPVariable_Unpack(o[0]).grad(),
                                                        calls);
                }
                PyObject* found = _PyType_Lookup(Py_TYPE(o[0]), event.name);
                if (found != nullptr || world_->find(o[0]) != nullptr)
                    throw Puzzle("a store to the attribute " + text_of(event.name) +
                                 " of a tensor");
                return;
            }
            if (event.operation == Operation::store_attribute && is_function_context(o[0]))
                note_context_store(event);
            world_->read_special_methods(o[0]);
            if (!has_python_setattr(Py_TYPE(o[0])))
                world_->write_attribute(o[0], event.name,
                                        event.operation == Operation::delete_attribute);
            return;
        default:
            break;
    }
    // Items.
    world_->read_special_methods(o[0]);
    const bool python = [&] {
        if (!PyType_HasFeature(Py_TYPE(o[0]), Py_TPFLAGS_HEAPTYPE)) return false;
        static PyObject* const set = PyUnicode_InternFromString("__setitem__");
        static PyObject* const del = PyUnicode_InternFromString("__delitem__");
        PyObject* found =
            _PyType_Lookup(Py_TYPE(o[0]), event.operation == Operation::store_item ? set : del);
        return found != nullptr && PyFunction_Check(found);
    }();
    if (!python && PyDict_Check(o[0])) read_key(*world_, o[1], o[0]);
    // What a slice takes over.
    if (!python && o.size() > 2 && PySlice_Check(o[1])) world_->read_whole(o[2], 1);
    if (python || world_->find(o[0]) == nullptr) return;
    if (PyDict_Check(o[0]))
        world_->write_dict(o[0], o[1], event.operation == Operation::delete_item);
    else if (PyList_Check(o[0]) || is_deque(o[0]))
        world_->write_whole(o[0]);
    else
        throw Puzzle(std::string("a store to an item of a ") + Py_TYPE(o[0])->tp_name);
}

Verdict Recording::on_tensor_attribute(Frame frame, const Event& event, PyObject** result) {
    PyObject* tensor = event.operands[0];
    if (!THPVariable_CheckExact(tensor))
        throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(tensor)->tp_name);
    PyObject* found = world_->read_class(Py_TYPE(tensor), event.name);
    const std::string name = text_of(event.name);
    if (found == nullptr || Py_TYPE(found) != &PyGetSetDescr_Type) {
        if (found == nullptr || Py_TYPE(found)->tp_descr_set == nullptr)
            world_->read_attribute(tensor, event.name);
        return Verdict::run;
    }
    if (name == "data") {  // the same memory without history; a promise where eager has an alias
        const Ref promise = numbers_->stand_in(tensor);
        try {
            *result = THPVariable_Wrap(
                recorder_->data_of(THPVariable_Unpack(promise ? promise.get() : tensor)));
        } catch (const NotSupported&) {
            throw Puzzle("the data of a tensor");
        }
        return *result != nullptr ? Verdict::handled : Verdict::raise;
    }
    const Known* known = world_->find(tensor);
    if (known != nullptr && known->tensor >= 0)
        segment_->guards.tensors[static_cast<std::size_t>(known->tensor)].inspected = true;
    if (name == "is_leaf")
        if (const auto leaf = histories_.true_leaf(THPVariable_Unpack(tensor))) {
            *result = PyBool_FromLong(*leaf);
            return Verdict::handled;
        }
    if (name == "grad" && known != nullptr) {
        world_->read_gradient(tensor);
        return Verdict::run;
    }
    if (name == "grad" || name == "grad_fn" || name == "_base") {
        const at::Tensor& t = THPVariable_Unpack(tensor);
        if (t.requires_grad() || (name == "_base" && t.is_view()))
            throw Puzzle("the attribute " + name + " of a tensor");
        return Verdict::run;
    }
    if (!is_known_tensor_attribute(event.name))
        throw Puzzle("the attribute " + name + " of a tensor");
    static const std::unordered_set<std::string> operators = {"T", "mT", "H", "mH", "real", "imag"};
    if (numbers_->any() && (name == "shape" || name == "nbytes") &&
        numbers_->has_symbolic_sizes(tensor))
        return carried(frame, event, result);
    return operators.contains(name) ? carried(frame, event, result) : Verdict::run;
}

Verdict Recording::on_operator(Frame frame, const Event& event, PyObject** result) {
    const auto& o = event.operands;
    const bool tensors = std::any_of(o.begin(), o.end(), is_tensor);
    if (event.operation == Operation::truth ||
        (event.operation == Operation::unary &&
         event.detail == static_cast<int>(UnaryOperator::logical_not))) {
        if (tensors) {
            if (assume_no_raise(frame, event, result)) return Verdict::handled;
            refuse_unknown(o, "a tensor decides a branch");
            return carried(frame, event, result);
        }
        world_->read_special_methods(o[0]);
        world_->read_whole(o[0], 1);
        return Verdict::run;
    }
    if (tensors) {
        for (PyObject* x : o)
            if (is_tensor(x) && !THPVariable_CheckExact(x))
                throw Puzzle(std::string("a tensor of the subclass ") + Py_TYPE(x)->tp_name);
        if (event.operation == Operation::contains && is_tensor(o[1]))
            throw Puzzle("a search in a tensor");
        read_arguments(o, 4);
        return carried(frame, event, result);
    }
    for (PyObject* x : o) world_->read_special_methods(x);
    if (event.operation == Operation::binary && is_in_place(event.detail) &&
        (PyList_Check(o[0]) || PyDict_Check(o[0]) || PyAnySet_Check(o[0]) || is_deque(o[0])))
        world_->write_whole(o[0], !PyList_Check(o[0]) || event.detail != NB_INPLACE_ADD);
    const bool deep =
        event.operation == Operation::compare || event.operation == Operation::contains;
    if (event.operation == Operation::contains && (PyDict_Check(o[1]) || PyAnySet_Check(o[1])))
        read_key(*world_, o[0], o[1]);
    if (event.operation == Operation::contains && PyDict_Check(o[1])) {
        if (world_->find(o[1]) != nullptr) world_->read_dict(o[1], o[0]);
        return Verdict::run;
    }
    if (deep && o.size() > 1) world_->relate(o[0], o[1]);
    // The text of what stands behind `%`.
    const bool formats = event.operation == Operation::binary && PyUnicode_Check(o[0]) &&
                         (event.detail == NB_REMAINDER || event.detail == NB_INPLACE_REMAINDER);
    read_arguments(o, deep || formats ? 6 : 1);
    if (event.operation == Operation::contains) relate_to_items(*world_, o[0], o[1]);
    return deep && any_tensor(o) ? carried(frame, event, result) : Verdict::run;
}

Verdict Recording::carried(Frame frame, const Event& event, PyObject** result) {
    if (follow_met(frame, event, result))
        return *result != nullptr ? Verdict::handled : Verdict::raise;
    recorder_->clear_failure();
    const std::size_t calls = recorder_->log().size();
    const bool stand_ins = takes_stand_ins(event), breaks = stand_ins || is_repeatable(event);
    if (breaks) carrying_.push_back(frame);
    if (stand_ins) {
        *result = perform_on_stand_ins(event);
    } else {
        const Observed observed;
        *result = perform(event);
    }
    if (breaks) carrying_.pop_back();
    return carried_out(event, calls, result);
}

Verdict Recording::carried_out(const Event& event, std::size_t calls, PyObject** result) {
    if (over_) {  // a break in Python code that the call led to
        return *result != nullptr ? finish_result(event, result) : Verdict::raise;
    }
    if (*result != nullptr) return finish_result(event, result);
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return Verdict::raise;
    std::string reason;
    if (recorder_->failure()) {
        reason = *recorder_->failure();
    } else if (!is_operator_event(event)) {
        return Verdict::raise;  // the program's own exception
    } else {
        reason = "an operator raises " + error_text();
    }
    PyErr_Clear();
    recorder_->clear_failure();
    // `y.imag.mul_(3)` writes, and fails behind that: carried out again it would write twice.
    if (recorder_->take_back_calls(calls)) throw Eagerly(reason);
    if (refuses_a_change(reason)) throw Eagerly(reason);
    throw Puzzle(reason);
}

}  // namespace ingot::capture
