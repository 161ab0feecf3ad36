// What operations mean for symbolic numbers while recording: which are followed, which only move
// objects, and which need the number; see numbers.h. A part of recording.h.
#include <opcode.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>

#include "capture/captured.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "capture/replaced_calls.h"

namespace ingot::capture {
namespace {

using Sign = SizeGuard::Relation;

bool is_sequence(PyObject* o) { return PyTuple_Check(o) || PyList_Check(o); }

/// `left relation right` by Python's sign.
bool decide(trace::SymbolicSizes& sizes, int sign, Expr left, Expr right) {
    switch (sign) {
        case Py_EQ:
            return sizes.decide(Sign::Eq, left, right);
        case Py_NE:
            return sizes.decide(Sign::Ne, left, right);
        case Py_LT:
            return sizes.decide(Sign::Lt, left, right);
        case Py_LE:
            return sizes.decide(Sign::Le, left, right);
        case Py_GT:
            return sizes.decide(Sign::Lt, right, left);
        default:
            return sizes.decide(Sign::Le, right, left);
    }
}

/// Functions of C that only move what they are given.
bool only_moves(const std::string& name) {
    static const std::unordered_set<std::string> names = {
        "isinstance",  "issubclass",  "callable",    "id",           "iter",
        "len",         "list.append", "list.extend", "list.reverse", "list.clear",
        "list.copy",   "dict.items",  "dict.keys",   "dict.values",  "dict.copy",
        "dict.update", "dict.clear",  "next",        "tuple.__new__"};
    // Abstract base classes look at the class alone.
    return names.contains(name) || name == "_abc._abc_instancecheck" ||
           name == "_abc._abc_subclasscheck";
}
/// Those of which only the first argument decides.
bool moves_all_but_first(const std::string& name) {
    static const std::unordered_set<std::string> names = {
        "list.insert",      "list.pop",         "dict.get",
        "dict.pop",         "dict.setdefault",  "dict.__setitem__",
        "dict.__getitem__", "list.__getitem__", "tuple.__getitem__"};
    return names.contains(name);
}

}  // namespace

bool Recording::follow_comparison(const Event& event, PyObject** result) {
    PyObject *left = event.operands[0], *right = event.operands[1];
    if (is_tensor(left) || is_tensor(right)) return false;
    trace::SymbolicSizes& sizes = *recorder_->symbols();
    const auto a = numbers_->value_of(left), b = numbers_->value_of(right);
    if (a && b) {
        if (!a->is_heap_allocated() && !b->is_heap_allocated()) return false;
        *result = PyBool_FromLong(
            decide(sizes, event.detail, trace::unwrap(*a), trace::unwrap(*b)) ? 1 : 0);
        return true;
    }
    if (numbers_->is_symbolic(left) || numbers_->is_symbolic(right)) {
        const auto x = numbers_->float_of(left), y = numbers_->float_of(right);
        if (x && y) {
            *result = PyBool_FromLong(segment_->guards.floats.decide(event.detail, *x, *y) ? 1 : 0);
            return true;
        }
    }
    const bool alike = (PyTuple_Check(left) && PyTuple_Check(right)) ||
                       (PyList_CheckExact(left) && PyList_CheckExact(right));
    if (alike && (event.detail == Py_EQ || event.detail == Py_NE) &&
        Py_SIZE(left) == Py_SIZE(right)) {
        world_->read_whole(left, 1);  // what is in them may be symbolic from now on
        world_->read_whole(right, 1);
        std::vector<std::pair<Expr, Expr>> pairs;
        for (Py_ssize_t i = 0; i < Py_SIZE(left); ++i) {
            const auto x = numbers_->value_of(PySequence_Fast_GET_ITEM(left, i)),
                       y = numbers_->value_of(PySequence_Fast_GET_ITEM(right, i));
            if (!x || !y) break;
            pairs.emplace_back(trace::unwrap(*x), trace::unwrap(*y));
        }
        if (static_cast<Py_ssize_t>(pairs.size()) == Py_SIZE(left)) {
            bool equal = true;
            for (const auto& [x, y] : pairs) equal = equal && sizes.decide(Sign::Eq, x, y);
            *result = PyBool_FromLong(equal == (event.detail == Py_EQ) ? 1 : 0);
            return true;
        }
    }
    numbers_->specialise(event.operands);
    return false;
}

bool Recording::follow_truth(const Event& event, PyObject** result, bool negated) {
    if (const auto number = numbers_->find_float(event.operands[0])) {
        FloatGuards& floats = segment_->guards.floats;
        const bool truth = floats.decide(Py_NE, *number, floats.constant(0));
        *result = PyBool_FromLong(truth != negated ? 1 : 0);
        return true;
    }
    const c10::SymInt* value = numbers_->find(event.operands[0]);
    if (value == nullptr) return false;
    const bool truth = recorder_->symbols()->decide(Sign::Ne, trace::unwrap(*value), 0);
    *result = PyBool_FromLong(truth != negated ? 1 : 0);
    return true;
}

bool Recording::follow_class(PyTypeObject* type, std::span<PyObject* const> arguments,
                             PyObject** result) {
    if (type == &PyType_Type || type == &PySlice_Type) return false;
    if (is_python_class(type)) {
        // What C code makes of them: a float, a text, a set. Others move them or are Python's.
        while (is_python_class(type)) type = type->tp_base;
        if (classify_class(type) == CallKind::Pure && type != &PyDict_Type &&
            type != &PyODict_Type && type != &PyList_Type && type != &PyTuple_Type)
            numbers_->specialise(arguments);
        return false;
    }
    if (arguments.size() == 1 && type == &PyFloat_Type && numbers_->is_symbolic(arguments[0]))
        if (const auto number = numbers_->float_of(arguments[0])) {
            *result = PyFloat_CheckExact(arguments[0]) ? Py_NewRef(arguments[0])
                                                       : numbers_->add_float(*number).release();
            return true;
        }
    if (arguments.size() == 1 && type == &PyLong_Type && numbers_->find_float(arguments[0]) &&
        give_rounded("math.trunc", arguments[0], result))
        return true;
    const c10::SymInt* only = arguments.size() == 1 ? numbers_->find(arguments[0]) : nullptr;
    if (only != nullptr && type == &PyLong_Type) {
        *result = Py_NewRef(arguments[0]);
        return true;
    }
    if (arguments.size() == 1 && type == &PyBool_Type && numbers_->is_symbolic(arguments[0])) {
        const std::array<PyObject*, 1> operand = {arguments[0]};
        return follow_truth({Operation::truth, 0, operand}, result, false);
    }
    if ((type == &PyMap_Type || type == &PyFilter_Type) && arguments.size() > 1 &&
        is_python_callable(arguments[0]) &&
        std::ranges::all_of(arguments.subspan(1),
                            [](PyObject* o) { return is_sequence(o) || is_generator(o); }))
        return false;
    const bool moves = type == &PyTuple_Type || type == &PyList_Type || type == &THPSizeType ||
                       type == &PyDict_Type || type == &PyEnum_Type || type == &PyZip_Type ||
                       type == &PyReversed_Type;
    for (PyObject* o : arguments) {
        // An iterator may run code whose results nobody sees.
        if (!moves || numbers_->is_symbolic(o) || (o != nullptr && !is_sequence(o)))
            numbers_->specialise(o);
    }
    return false;
}

bool Recording::follow_call(const Event& event, PyObject** result) {
    PyObject* callable = event.operands[0];
    bool keywords = false;
    if (event.operation == Operation::call_expanded) read_expanded(event);
    const std::vector<PyObject*> arguments = arguments_of(event, &keywords);
    PyObject* self = nullptr;
    if (state().mark_of(callable) != Mark::None) {
        numbers_->specialise(arguments);
        return false;
    }
    if (PyMethod_Check(callable)) {
        self = PyMethod_GET_SELF(callable);
        callable = PyMethod_GET_FUNCTION(callable);
    }
    if (PyFunction_Check(callable) || captured_function(callable) != nullptr) return false;
    if (PyType_Check(callable) && self == nullptr)
        return !keywords &&
               follow_class(reinterpret_cast<PyTypeObject*>(callable), arguments, result);
    static PyObject* const call = PyUnicode_InternFromString("__call__");
    if (PyType_HasFeature(Py_TYPE(callable), Py_TPFLAGS_HEAPTYPE)) {
        PyObject* method = _PyType_Lookup(Py_TYPE(callable), call);
        if (method != nullptr && PyFunction_Check(method)) return false;
    }
    const CallClass c = classify(callable);
    switch (c.kind) {
        case CallKind::Torch:
        case CallKind::Unknown:
        case CallKind::Frames:
        case CallKind::Data:
        case CallKind::Shallow:
        case CallKind::GetAttr:
        case CallKind::SetAttr:
        case CallKind::State:
            if (std::string_view(Py_TYPE(callable)->tp_name) != "functools.partial") return false;
            if (const Ref inner = Ref::steal(PyObject_GetAttrString(callable, "func"));
                inner && is_python_callable(inner.get()))
                return false;  // Python code gets what it holds and what it is given
            break;
        default:
            break;
    }
    if (self == nullptr && PyCFunction_Check(callable)) self = PyCFunction_GET_SELF(callable);
    const bool unbound =
        Py_TYPE(callable) == &PyMethodDescr_Type || Py_TYPE(callable) == &PyWrapperDescr_Type;
    std::span<PyObject* const> given(arguments);
    if (unbound && !given.empty()) {
        self = given[0];
        given = given.subspan(1);
    }
    if (c.name == "len" && given.size() == 1 && is_tensor(given[0])) {
        if (!numbers_->has_symbolic_sizes(given[0]) || THPVariable_Unpack(given[0]).dim() == 0)
            return false;
        const Ref promise = numbers_->stand_in(given[0]);
        const at::Tensor& t = THPVariable_Unpack(promise ? promise.get() : given[0]);
        *result = numbers_->add_number(t.sym_size(0)).release();
        return true;
    }
    if (only_moves(c.name)) return false;
    if (!keywords && follow_function(c.name, given, result)) return true;
    if ((c.name == "max" || c.name == "min") && !keywords &&
        follow_extreme(given, c.name == "max", result))
        return true;
    if (!keywords && follow_fold(event, c.name, given, result)) return true;
    if (moves_all_but_first(c.name)) {
        if (!given.empty()) numbers_->specialise(given[0]);
        return false;
    }
    numbers_->specialise(callable);
    numbers_->specialise(self);
    numbers_->specialise(given);
    return false;
}

bool Recording::follow_numbers(Frame frame, const Event& event, PyObject** result) {
    const auto& o = event.operands;
    switch (event.operation) {
        case Operation::read_attribute:
            if (numbers_->is_symbolic(o[0])) numbers_->specialise(o[0]);
            return false;
        case Operation::read_item:
        case Operation::store_item:
        case Operation::delete_item:
            if (!is_tensor(o[0])) numbers_->specialise(o[1]);
            return false;
        case Operation::unary:
            if (event.detail == static_cast<int>(UnaryOperator::logical_not))
                return follow_truth(event, result, true);
            if (const c10::SymInt* value = numbers_->find(o[0])) {
                if (event.detail == static_cast<int>(UnaryOperator::negative)) {
                    const Expr e = -trace::unwrap(*value);
                    *result = numbers_->add_number(recorder_->symbols()->wrap(e)).release();
                    return true;
                }
                if (event.detail == static_cast<int>(UnaryOperator::positive)) {
                    *result = Py_NewRef(o[0]);
                    return true;
                }
                if (event.detail == static_cast<int>(UnaryOperator::invert)) {
                    const Expr e = -trace::unwrap(*value) + Expr(-1);
                    *result = numbers_->add_number(recorder_->symbols()->wrap(e)).release();
                    return true;
                }
                numbers_->specialise(o[0]);
            }
            if (const auto number = numbers_->find_float(o[0])) {
                FloatGuards& floats = segment_->guards.floats;
                if (event.detail == static_cast<int>(UnaryOperator::negative) &&
                    give_float(floats.compute(FloatGuards::Make::Negate, *number), result))
                    return true;
                numbers_->specialise(o[0]);
            }
            return false;
        case Operation::truth:
            return follow_truth(event, result, false);
        case Operation::binary:
            return follow_binary(event, result);
        case Operation::compare:
            return follow_comparison(event, result);
        case Operation::call:
        case Operation::call_expanded:
            return follow_call(event, result);
        case Operation::identical:
            if (numbers_->find(o[0]) == nullptr && numbers_->find(o[1]) == nullptr) return false;
            numbers_->specialise(o);
            if (PyLong_CheckExact(o[0]) && PyLong_CheckExact(o[1])) {
                // Small integers are one object in CPython, these are not.
                const std::int64_t a = PyLong_AsLongLong(o[0]), b = PyLong_AsLongLong(o[1]);
                const bool same = o[0] == o[1] || (a == b && a >= -5 && a <= 256);
                *result = PyBool_FromLong(same != (event.detail == 1) ? 1 : 0);
                return true;
            }
            return false;
        case Operation::yield_value:
            if (!is_moved(frame) && !any_tensor(o, 0)) numbers_->specialise(o);
            return false;
        case Operation::send:  // a generator's own code gets it
            if (!is_generator(o[0]) && !any_tensor(o, 0)) numbers_->specialise(o);
            return false;
        case Operation::contains:
            // What a dict's keys lead to is not looked at.
            if (PyDict_CheckExact(o[1]) && !any_tensor(o, 0)) {
                numbers_->specialise(o[0]);
                Py_ssize_t position = 0;
                for (PyObject* key = nullptr; PyDict_Next(o[1], &position, &key, nullptr) != 0;)
                    numbers_->specialise(key);
                return false;
            }
            [[fallthrough]];
        case Operation::format:
        case Operation::match_class:
        case Operation::match_keys:
        case Operation::match_kind:
        case Operation::extend_set:
        case Operation::await:
        case Operation::hash:
            if (!any_tensor(o, 0)) numbers_->specialise(o);
            return false;
        default:
            return false;
    }
}

/// C code is about to get what Python code returns to it, and to do what nobody sees with it.
void Recording::left(Frame frame, Exit exit, PyObject* result) {
    if (exit == Exit::lost) lose(frame);
    if (exit == Exit::suspended) suspended_.insert(frame.slots().data());
    if (over_ || numbers_ == nullptr || !numbers_->any()) return;
    if (exit == Exit::returned && frame.caller() && !frame.is_direct() && !is_tensor(result)) try {
            numbers_->specialise(result);
        } catch (const std::exception&) {
            if (give_up("a size that is needed as a number") == Verdict::raise)
                PyErr_Clear();  // the frame further out raises it
        }
}

namespace {

/// Which operand is the learning rate of one of PyTorch's fused steps: as a float it would be a
/// number of the program, as a tensor the call gives it. -1: none.
Py_ssize_t rate_of_fused_step(const Event& event) {
    if (event.operation != Operation::call || event.keyword_names == nullptr) return -1;
    if (!classify(event.operands[0]).name.starts_with("torch._fused_")) return -1;
    const Py_ssize_t names = PyTuple_GET_SIZE(event.keyword_names);
    for (Py_ssize_t k = 0; k < names; ++k)
        if (text_of(PyTuple_GET_ITEM(event.keyword_names, k)) == "lr")
            return static_cast<Py_ssize_t>(event.operands.size()) - names + k;
    return -1;
}

/// Whether a symbolic integer is among an operator's arguments.
bool holds_integer(const Numbers& numbers, PyObject* o, int depth = 3) {
    if (o == nullptr || numbers.find(o) != nullptr) return o != nullptr;
    const auto holds = [&](PyObject* part) {
        return depth > 0 && holds_integer(numbers, part, depth - 1);
    };
    if (PySlice_Check(o)) {
        const auto* s = reinterpret_cast<PySliceObject*>(o);
        return holds(s->start) || holds(s->stop) || holds(s->step);
    }
    if (PyDict_CheckExact(o)) {
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        while (PyDict_Next(o, &position, &key, &value))
            if (holds(value)) return true;
        return false;
    }
    if (!PyTuple_Check(o) && !PyList_CheckExact(o)) return false;
    return std::ranges::any_of(
        std::span(PySequence_Fast_ITEMS(o), static_cast<std::size_t>(Py_SIZE(o))), holds);
}

/// Whether the calls can be made once more: none has written to anything.
bool has_written_nothing(std::span<const trace::LoggedCall> calls) {
    return std::ranges::none_of(
        calls, [](const trace::LoggedCall& c) { return c.op.schema().is_mutable(); });
}

/// Whether it is a call of `where`, whose numbers PyTorch makes into tensors at once.
bool is_choice(const Event& event) {
    if (event.operation != Operation::call) return false;
    const std::string name = classify(event.operands[0]).name;
    return name == "torch.where" || name == "Tensor.where";
}

}  // namespace

Event Recording::with_stand_ins(const Event& event, std::vector<Ref>& held,
                                std::vector<PyObject*>& operands) {
    operands.assign(event.operands.begin(), event.operands.end());
    std::size_t first = 0;
    if (event.operation == Operation::call || event.operation == Operation::call_expanded) {
        first = 1;
        PyObject* callable = operands[0];
        // A method that is bound to a tensor already.
        if (PyCFunction_Check(callable) && is_tensor(PyCFunction_GET_SELF(callable))) {
            const Ref owner = numbers_->stand_in(PyCFunction_GET_SELF(callable));
            Ref bound = Ref::steal(
                owner ? PyObject_GetAttrString(
                            owner.get(),
                            reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name)
                      : nullptr);
            if (bound) {
                operands[0] = bound.get();
                held.push_back(std::move(bound));
            }
            PyErr_Clear();
        }
    }
    const bool is_operator = event.operation == Operation::binary ||
                             event.operation == Operation::compare || is_choice(event);
    const Py_ssize_t rate = rate_of_fused_step(event);
    for (std::size_t i = first; i < operands.size(); ++i) {
        Ref other =
            numbers_->stand_in(operands[i], is_operator || static_cast<Py_ssize_t>(i) == rate);
        if (event.operation == Operation::call_expanded && i == 2 && operands[i] != nullptr) {
            other = Ref::steal(PyDict_Copy(operands[i]));
            Py_ssize_t position = 0;
            PyObject *key = nullptr, *value = nullptr;
            while (other && PyDict_Next(operands[i], &position, &key, &value))
                if (const Ref changed = numbers_->stand_in(value))
                    PyDict_SetItem(other.get(), key, changed.get());
        }
        if (!other) continue;
        operands[i] = other.get();
        held.push_back(std::move(other));
    }
    Event changed = event;
    changed.operands = operands;
    // A float is not changed in place, but the tensor that stands for it would be.
    if (event.operation == Operation::binary && numbers_->find_float(event.operands[0]))
        changed.detail = operator_of(event.detail);
    return changed;
}

PyObject* Recording::perform_on_stand_ins(const Event& event) {
    const auto attempt = [&] {
        std::vector<Ref> held;
        std::vector<PyObject*> operands;
        {
            const Observed observed;
            if (const auto replaced = perform_replaced(*numbers_, event)) return *replaced;
        }
        const Event other = with_stand_ins(event, held, operands);
        const Observed observed;
        return perform(other);
    };
    const std::size_t calls = recorder_->log().size();
    const auto has_failed = [&](PyObject* result) {
        return result == nullptr && !over_ && PyErr_ExceptionMatches(PyExc_Exception);
    };
    const auto again = [&] {
        PyErr_Clear();
        recorder_->clear_failure();
        return attempt();
    };
    PyObject* result = attempt();
    // Not every operator takes a float that is known only when the program runs.
    if (has_failed(result) && numbers_->specialise_floats(event.operands)) result = again();
    // Nor a size that is not: an operator of a library with an `int` for an argument takes none.
    if (has_failed(result) && has_written_nothing(recorder_->log().subspan(calls)) &&
        std::ranges::any_of(event.operands,
                            [&](PyObject* o) { return holds_integer(*numbers_, o); })) {
        numbers_->specialise(event.operands);
        result = again();
    }
    return numbers_->settled(result);
}

bool Recording::takes_stand_ins(const Event& event) const {
    if (!numbers_->any()) return false;
    if (event.operation != Operation::call && event.operation != Operation::call_expanded)
        return event.operation != Operation::iterate;
    PyObject* callable = event.operands[0];
    if (PyMethod_Check(callable) || PyFunction_Check(callable) || PyType_Check(callable) ||
        captured_function(callable) != nullptr)
        return false;
    const CallClass c = classify(callable);
    static const std::unordered_set<std::string> unseen = {
        "Tensor.is_inference", "Tensor.__hash__", "Tensor._is_view", "Tensor.__reduce_ex__"};
    static const std::unordered_set<std::string> others = {"getattr", "pow", "divmod", "abs"};
    return (c.kind == CallKind::Torch && !unseen.contains(c.name)) || others.contains(c.name);
}

}  // namespace ingot::capture
