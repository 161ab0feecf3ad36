// What C code looks at on behalf of a program: the attributes that class patterns name, and what
// functools.lru_cache has kept; see recording.h.
#include <algorithm>
#include <functional>
#include <span>

#include "capture/objects.h"
#include "capture/perform.h"
#include "capture/recording.h"

namespace ingot::capture {
namespace {

std::span<PyObject* const> items_of(PyObject* tuple) {
    return {PySequence_Fast_ITEMS(tuple), static_cast<std::size_t>(PyTuple_GET_SIZE(tuple))};
}

/// Whether it is C code's own object for list[int] or int | None.
bool is_annotation(PyObject* o) {
    static PyObject* const either = [] {
        const Ref types = Ref::steal(PyImport_ImportModule("types"));
        PyObject* type = types ? PyObject_GetAttrString(types.get(), "UnionType") : nullptr;
        PyErr_Clear();
        return type;
    }();
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(o));
    return type == reinterpret_cast<PyObject*>(&Py_GenericAliasType) || type == either;
}

}  // namespace

/// What a class pattern looks at: the subject's class, and the attributes that it names.
void Recording::read_class_pattern(const Event& event) {
    PyObject* subject = event.operands[0];
    PyObject* pattern = event.operands[1];
    world_->read_special_methods(subject);
    if (!PyType_Check(pattern)) return;
    auto* type = reinterpret_cast<PyTypeObject*>(pattern);
    static PyObject* const match_args = PyUnicode_InternFromString("__match_args__");
    static PyObject* const instance_check = PyUnicode_InternFromString("__instancecheck__");
    const bool plain = world_->read_class(Py_TYPE(type), instance_check) ==
                       _PyType_Lookup(&PyType_Type, instance_check);
    if (!plain) world_->read_registrations();
    if (plain && !PyType_IsSubtype(Py_TYPE(subject), type)) return;
    std::vector<PyObject*> names;
    const auto add = [&](PyObject* tuple, Py_ssize_t most) {
        for (Py_ssize_t i = 0; i < std::min(most, PyTuple_GET_SIZE(tuple)); ++i)
            names.push_back(PyTuple_GET_ITEM(tuple, i));
    };
    PyObject* positional = world_->read_class(type, match_args);
    if (positional != nullptr && PyTuple_CheckExact(positional)) add(positional, event.detail);
    if (PyObject* named = event.operands[2]; named != nullptr && PyTuple_CheckExact(named))
        add(named, PyTuple_GET_SIZE(named));
    if (!names.empty() && is_tensor(subject)) throw Puzzle("a pattern that looks into a tensor");
    for (PyObject* name : names)
        if (PyUnicode_Check(name)) world_->read_attribute(subject, name);
    if (names.empty()) world_->read_whole(subject, 1);
}

/// A function under functools.lru_cache is called as it is, outside of the recording, and called
/// again by the guards: what it gives is constant as long as the cache gives it.
Verdict Recording::on_cached_function(const Event& event, PyObject* callable,
                                      std::span<PyObject* const> all, PyObject** result) {
    const std::function<bool(PyObject*)> is_same_at_each_call = [&](PyObject* o) {
        const Known* k = world_->find(o);
        if (k != nullptr) return !k->dynamic() && !is_tensor(o);
        if (!is_annotation(o)) return is_plain_constant(o) || is_immutable_c_object(o);
        // list[int], int | None: made anew at each call, and equal if what it is made of is.
        const Ref parts = Ref::steal(PyObject_GetAttrString(o, "__args__"));
        if (!parts || !PyTuple_CheckExact(parts.get())) throw Puzzle("an annotation of its own");
        const auto of = Py_IS_TYPE(o, &Py_GenericAliasType)
                            ? Ref::steal(PyObject_GetAttrString(o, "__origin__"))
                            : Ref();
        return (!of || PyType_Check(of.get())) &&
               std::ranges::all_of(items_of(parts.get()), [&](PyObject* part) {
                   return is_same_at_each_call(part) ||
                          (PyType_Check(part) && world_->find(part) == nullptr);
               });
    };
    const Known* known = world_->find(callable);
    if (known != nullptr && known->dynamic()) throw Puzzle("a cached function from outside");
    if (strict_ == Strict::Backward) throw Puzzle("a cached function in a backward");
    for (PyObject* o : all)
        if (!is_same_at_each_call(o) && !(world_->find(o) == nullptr && PyTuple_CheckExact(o) &&
                                          std::ranges::all_of(items_of(o), is_same_at_each_call)))
            throw Puzzle("a cached function of objects that may change");
    Ref arguments, names;
    if (event.operation == Operation::call_expanded) {
        arguments = Ref::steal(PySequence_Tuple(event.operands[1]));
        if (event.operands.size() > 2 && event.operands[2] != nullptr)
            names = Ref::steal(PyDict_Copy(event.operands[2]));
    } else {
        const auto named = static_cast<std::size_t>(
            event.keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(event.keyword_names));
        arguments = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(all.size() - named)));
        for (std::size_t i = 0; arguments && i < all.size() - named; ++i)
            PyTuple_SET_ITEM(arguments.get(), static_cast<Py_ssize_t>(i), Py_NewRef(all[i]));
        if (named != 0) names = Ref::steal(PyDict_New());
        for (std::size_t i = 0; names && i < named; ++i)
            PyDict_SetItem(names.get(),
                           PyTuple_GET_ITEM(event.keyword_names, static_cast<Py_ssize_t>(i)),
                           all[all.size() - named + i]);
    }
    if (!arguments) throw Puzzle("a cached function");
    {
        const Ref held = Ref::borrow(callable);
        *result =
            unrecorded([&] { return PyObject_Call(held.get(), arguments.get(), names.get()); });
    }
    if (*result == nullptr) {  // nothing is kept: eager calls it each time
        if (must_be_whole()) PyErr_Clear();
        (void)give_up("a cached function that raises");
        return Verdict::raise;
    }
    world_->read_cached_call(callable, arguments.get(), names.get(), *result);
    return finish_result(event, result);
}

}  // namespace ingot::capture
