// Generators and what consumes them while sizes are symbolic. A part of recording.h.
//
// A generator's frame is interpreted like any other, whoever asks it for its next item: what its
// code reads is followed there, so that to hand a generator to C code fixes nothing. What it yields
// is another matter. Where the consumer only moves items (a loop, `list`, `yield from`) a number
// stays symbolic; any other C code gets it as a number. The built-ins that make one value of many
// (`any`, `all`, `sum`, `max`, `min`, `math.prod`) are followed item by item, and go on in C with
// the first item that is no integer.
//
// Costs a comparison of types for each operation that may consume a generator.
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "capture/objects.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

using Sign = SizeGuard::Relation;
using trace::unwrap;

bool only_moves_items(PyObject* callable, std::size_t arguments) {
    if (callable == reinterpret_cast<PyObject*>(&PyList_Type) ||
        callable == reinterpret_cast<PyObject*>(&PyTuple_Type))
        return arguments == 1;
    if (!PyCFunction_Check(callable)) return false;
    auto* f = reinterpret_cast<PyCFunctionObject*>(callable);
    const std::string_view name = f->m_ml->ml_name;
    if (f->m_self != nullptr && PyList_CheckExact(f->m_self)) return name == "extend";
    return name == "next" && f->m_module != nullptr && PyUnicode_Check(f->m_module) &&
           PyUnicode_CompareWithASCIIString(f->m_module, "builtins") == 0;
}

enum class Fold : std::uint8_t { Any, All, Sum, Product, Max, Min };

std::optional<Fold> fold_of(const std::string& name) {
    if (name == "any") return Fold::Any;
    if (name == "all") return Fold::All;
    if (name == "sum") return Fold::Sum;
    if (name == "math.prod") return Fold::Product;
    if (name == "max") return Fold::Max;
    if (name == "min") return Fold::Min;
    return std::nullopt;
}

/// One more item; nothing where the numbers leave 64 bits.
std::optional<Expr> folded(Fold fold, Expr a, Expr b) {
    if (a.is_constant() && b.is_constant()) {
        std::int64_t value = 0;
        if (fold == Fold::Sum && __builtin_add_overflow(a.constant(), b.constant(), &value))
            return std::nullopt;
        if (fold == Fold::Product && __builtin_mul_overflow(a.constant(), b.constant(), &value))
            return std::nullopt;
    }
    switch (fold) {
        case Fold::Sum:
            return a + b;
        case Fold::Product:
            return a * b;
        case Fold::Max:
            return max(a, b);
        default:
            return min(a, b);
    }
}

/// The fold over the rest of an iteration by the built-in itself: `head` and what `iterator` still
/// gives, after `so_far` (nullptr: nothing yet).
PyObject* fold_in_c(Fold fold, PyObject* function, PyObject* so_far, PyObject* head,
                    PyObject* iterator) {
    static PyObject* const itertools = PyImport_ImportModule("itertools");
    const bool first = (fold == Fold::Max || fold == Fold::Min) && so_far != nullptr;
    const Ref heads = Ref::steal(first             ? PyTuple_Pack(2, so_far, head)
                                 : head != nullptr ? PyTuple_Pack(1, head)
                                                   : PyTuple_New(0));
    const Ref all =
        heads && itertools != nullptr
            ? Ref::steal(PyObject_CallMethod(itertools, "chain", "OO", heads.get(), iterator))
            : Ref();
    if (!all) return nullptr;
    if (so_far == nullptr || first) return PyObject_CallOneArg(function, all.get());
    if (fold == Fold::Sum)
        return PyObject_CallFunctionObjArgs(function, all.get(), so_far, nullptr);
    const Ref arguments = Ref::steal(PyTuple_Pack(1, all.get()));
    const Ref names = Ref::steal(Py_BuildValue("{s:O}", "start", so_far));
    return arguments && names ? PyObject_Call(function, arguments.get(), names.get()) : nullptr;
}

}  // namespace

PyObject* Recording::generator_moved_by(const Event& event) {
    const auto& o = event.operands;
    PyObject* generator = nullptr;
    switch (event.operation) {
        case Operation::next:
        case Operation::unpack:
        case Operation::send:
            generator = o[0];
            break;
        case Operation::extend_list:
            generator = o[1];
            break;
        case Operation::call:
            if (o.size() < 2 || !is_generator(o[1]) || !only_moves_items(o[0], o.size() - 1))
                return nullptr;
            generator = o[1];
            break;
        default:
            return nullptr;
    }
    return is_generator(generator) ? generator : nullptr;
}

void Recording::note_moved(const Event& event) {
    if (PyObject* generator = generator_moved_by(event)) moved_.push_back(generator);
}

void Recording::forget_moved(const Event& event) {
    if (moved_.empty()) return;
    if (PyObject* generator = generator_moved_by(event)) std::erase(moved_, generator);
}

bool Recording::is_moved(Frame frame) const {
    return !moved_.empty() && std::ranges::find(moved_, frame.generator()) != moved_.end();
}

bool Recording::after(Frame, const Event& event, PyObject* result) {
    forget_moved(event);
    const bool call =
        event.operation == Operation::call || event.operation == Operation::call_expanded;
    if (call && !over_ && result != nullptr) note_made(result);
    return true;
}

void Recording::raised(Frame, const Event& event) { forget_moved(event); }

bool Recording::follow_fold(const Event& event, const std::string& name,
                            std::span<PyObject* const> given, PyObject** result) {
    const auto fold = fold_of(name);
    if (!fold || given.empty() || given.size() > std::size_t{*fold == Fold::Sum ? 2U : 1U})
        return false;
    PyObject* const source = given[0];
    const bool generator = is_generator(source);
    if (generator && world_->find(source) != nullptr) return false;
    if (!generator) {
        if (!PyTuple_CheckExact(source) && !PyList_CheckExact(source) && !THPSize_Check(source))
            return false;
        const std::span<PyObject* const> items(PySequence_Fast_ITEMS(source),
                                               static_cast<std::size_t>(Py_SIZE(source)));
        const auto is_integer = [&](PyObject* o) { return numbers_->value_of(o).has_value(); };
        const auto is_symbolic = [&](PyObject* o) { return numbers_->is_symbolic(o); };
        if (!std::ranges::all_of(items, is_integer) || std::ranges::none_of(items, is_symbolic))
            return false;
        world_->read_whole(source, 1);
    }
    const bool truth = *fold == Fold::Any || *fold == Fold::All;
    std::optional<Expr> value;
    if (*fold == Fold::Sum) value = 0;
    if (*fold == Fold::Product) value = 1;
    if (given.size() == 2) {
        const auto start = numbers_->value_of(given[1]);
        if (!start) return false;
        value = unwrap(*start);
    }
    const Ref iterator = Ref::steal(PyObject_GetIter(source));
    if (!iterator) return true;
    const auto next = [&] {
        if (generator) moved_.push_back(source);
        const Observed observed;
        Ref item = Ref::steal(PyIter_Next(iterator.get()));
        if (generator) std::erase(moved_, source);
        return item;
    };
    const auto decided = [&](bool answer) {
        *result = PyBool_FromLong(answer ? 1 : 0);
        return true;
    };
    while (true) {
        const Ref item = next();
        if (!item && PyErr_Occurred()) return true;
        // A break in the generator's code has ended the recording: CPython does the rest.
        std::optional<Expr> one;
        if (item && !over_) {
            if (const auto number = numbers_->value_of(item.get()))
                one = unwrap(*number);
            else if (PyBool_Check(item.get()) && *fold != Fold::Max && *fold != Fold::Min)
                one = item.get() == Py_True ? 1 : 0;
        }
        if (truth) {
            if (!item) return decided(*fold == Fold::All);
            if (one) {
                if (recorder_->symbols()->decide(Sign::Ne, *one, 0) == (*fold == Fold::Any))
                    return decided(*fold == Fold::Any);
                continue;
            }
        } else if (one) {
            const auto more = value ? folded(*fold, *value, *one) : one;
            if (more) {
                value = more;
                continue;
            }
        } else if (!item && value) {
            *result = numbers_->add_number(recorder_->symbols()->wrap(*value)).release();
            return true;
        }
        Ref so_far;
        if (value) {
            so_far = numbers_->add_number(recorder_->symbols()->wrap(*value));
            if (!over_) numbers_->specialise(so_far.get());
        }
        if (item && !over_ && !is_tensor(item.get())) numbers_->specialise(item.get());
        const Observed observed;
        *result = fold_in_c(*fold, event.operands[0], so_far.get(), item.get(), iterator.get());
        return true;
    }
}

}  // namespace ingot::capture
