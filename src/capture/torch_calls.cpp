// Calls of functions and modules of which PyTorch's own words say something (torch_words.h): taken
// as they are, constant, left out, wrapped; see recording.h.
#include "capture/keys.h"
#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"
#include "capture/torch_words.h"

namespace ingot::capture {
namespace {

/// Whether a module has hooks of its own; that it has the same ones is guarded.
bool has_hooks(World& world, PyObject* module) {
    bool found = false;
    for (const char* name :
         {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}) {
        const Ref key = Ref::steal(PyUnicode_InternFromString(name));
        PyObject** dict = _PyObject_GetDictPtr(module);
        PyObject* hooks =
            dict != nullptr && *dict != nullptr ? PyDict_GetItem(*dict, key.get()) : nullptr;
        if (hooks == nullptr || !PyDict_Check(hooks)) return true;
        world.read_attribute(module, key.get());
        world.read_whole(hooks, 1);
        found = found || PyDict_GET_SIZE(hooks) != 0;
    }
    return found;
}

}  // namespace

PyObject* Recording::read_forward_of_torch(PyObject* callable) {
    PyObject* forward = forward_of_torch(callable);
    if (forward == nullptr || has_hooks(*world_, callable)) return nullptr;
    static PyObject* const name = PyUnicode_InternFromString("forward");
    world_->read_attribute(callable, name);
    return forward;
}

/// A function that is taken as it is: its operators are recorded, its Python is not looked at.
Verdict Recording::on_allowed(const Event& event, std::span<PyObject* const> arguments,
                              PyObject** result) {
    read_arguments(arguments, 4);
    recorder_->clear_failure();
    const std::size_t calls = recorder_->log().size();
    *result = perform_unobserved(event);
    if (*result == nullptr && !recorder_->failure()) return Verdict::raise;
    return carried_out(event, calls, result);
}

bool Recording::holds_promise(std::span<PyObject* const> objects, int depth) const {
    for (PyObject* o : objects) {
        if (o == nullptr) continue;
        if (is_our_tensor(o)) return true;
        if (depth > 0 && (PyTuple_Check(o) || PyList_Check(o)) &&
            holds_promise({PySequence_Fast_ITEMS(o), static_cast<std::size_t>(Py_SIZE(o))},
                          depth - 1))
            return true;
    }
    return false;
}

/// A function that always gives the same: it is called now, and its result is one from outside.
Verdict Recording::on_constant(const Event& event, std::span<PyObject* const> arguments,
                               PyObject** result) {
    if (holds_promise(arguments, 3)) throw Puzzle("a constant function of what is computed here");
    read_arguments(arguments, 4);
    *result = unrecorded([&] { return perform(event); });
    if (*result == nullptr) return Verdict::raise;
    if (!is_plain_constant(*result) && world_->find(*result) == nullptr) {
        const Ref holder = Ref::steal(PyTuple_Pack(1, *result));
        const Ref place = Ref::steal(PyLong_FromLong(0));
        if (!holder || !place) return Verdict::raise;
        world_->pin(holder.get(), "the result of a constant function");
        world_->read_item(holder.get(), place.get());
    }
    return finish_result(event, result);
}

void Recording::leave_out(Frame frame, const Event& event) {
    if (!left_out_.contains(reinterpret_cast<PyObject*>(frame.function()))) return;
    const auto& o = event.operands;
    switch (event.operation) {
        case Operation::unary:
        case Operation::binary:
        case Operation::compare:
        case Operation::contains:
        case Operation::truth:
        case Operation::read_item:
        case Operation::store_item:
            if (!any_tensor(o)) return;
            break;
        case Operation::call:
        case Operation::call_expanded: {
            PyObject* callee = PyMethod_Check(o[0]) ? PyMethod_GET_FUNCTION(o[0]) : o[0];
            const Mark mark = state().mark_of(callee);
            const bool asks = mark == Mark::True || mark == Mark::TrueForPrograms;
            if (PyFunction_Check(callee) ? !asks : !is_operator_event(event)) return;
            break;
        }
        default:
            return;
    }
    throw Puzzle("a function that is not to be compiled, though what it calls is");
}

}  // namespace ingot::capture
