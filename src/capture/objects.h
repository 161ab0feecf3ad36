// Questions about Python objects that guards and calls turn on.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <span>
#include <string>

#include "capture/ref.h"

namespace ingot::capture {

/// torch.Tensor or a subclass. Unlike PyTorch's own question it never runs Python code, so that it
/// may be asked with an error pending.
bool is_tensor(PyObject* object);
/// The Python object of a tensor, borrowed; nullptr if it has none.
PyObject* python_object(const at::Tensor& t);
/// Whether there is a tensor among them, or in tuples and lists `depth` levels down.
bool any_tensor(std::span<PyObject* const> objects, int depth = 2);
/// A Python string's text; "?" for what is none.
std::string text_of(PyObject* name);
/// Objects that a guard knows by identity even among a call's arguments: functions, classes,
/// modules, `nn.Module`s, dtypes, members of enumerations.
bool stands_for_itself(PyObject* object);
/// Objects of C types that never change: numbers, strings, ranges, devices, code, ...
bool is_immutable_c_object(PyObject* object);
/// Whether equal values have equal hashes however the object came about.
bool is_hashed_by_value(PyObject* object);
/// Whether attributes are found as `object.__getattribute__` does, perhaps with a Python
/// `__getattr__` or `__getattribute__` on top.
bool has_generic_attributes(PyTypeObject* type);
bool has_python_getattribute(PyTypeObject* type);
bool has_python_setattr(PyTypeObject* type);
/// Whether instances are Python objects through and through: no C code of an extension.
bool has_python_layout(PyTypeObject* type);
/// What runs when an object of the class goes: its `__del__`; nullptr: nothing.
PyObject* finalizer_of(PyTypeObject* type);
/// Whether a class was made by a class statement: classes of C extensions may have state of theirs.
bool is_python_class(PyTypeObject* type);
/// A Python function or a method bound to one: whoever calls it, its frame is the interpreter's.
bool is_python_callable(PyObject* object);
/// A generator or a coroutine: an object whose code goes on when it is asked for its next item.
bool is_generator(PyObject* object);
/// A `map` or `filter` whose items C code only hands on to Python code.
bool hands_to_python(PyObject* object);
/// A `collections.deque`, not of a subclass; its item (borrowed) and its `maxlen`.
bool is_deque(PyObject* object);
PyObject* item_of_deque(PyObject* deque, Py_ssize_t index);
Ref most_of_deque(PyObject* deque);
/// Gives a dict's keys to `visit` one after another, until it says false, in the order in which
/// Python sees them: an OrderedDict keeps one of its own, which `move_to_end` changes and the
/// dict's version does not tell. Whether it came to the end.
template <class Visit>
bool all_keys(PyObject* dict, Visit&& visit) {
    if (!PyODict_Check(dict)) {
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        while (PyDict_Next(dict, &position, &key, &value))
            if (!visit(key)) return false;
        return true;
    }
    const Ref keys = Ref::steal(PyODict_Type.tp_iter(dict));
    while (const Ref key = keys ? Ref::steal(PyIter_Next(keys.get())) : Ref())
        if (!visit(key.get())) return false;
    if (!PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
}
/// A class derived from `threading.local` whose attributes are found as that finds them.
bool is_local_of_threads(PyTypeObject* type);
/// What such an object holds in this thread (borrowed: the thread holds it); the first time in a
/// thread makes it. nullptr where that fails.
PyObject* dict_of_thread(PyObject* local);
/// torch.nn.Module.
PyTypeObject* module_class();

}  // namespace ingot::capture
