// See undo.h.
#include "capture/undo.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <ranges>

#include "capture/dropped_gradients.h"
#include "capture/guards.h"
#include "capture/objects.h"
#include "trace/recorder.h"

namespace ingot::capture {

void Undo::note_key(PyObject* dict, PyObject* key, bool deletes) {
    if (copied_.contains(dict)) return;  // with all its keys
    if (deletes) return note_contents(dict);
    if (!noted_.insert({dict, key}).second) return;
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (value == nullptr) PyErr_Clear();
    before_.push_back({Before::Kind::Key, Ref::borrow(dict), Ref::borrow(key), Ref::borrow(value)});
}

void Undo::note_cell(PyObject* cell) {
    if (!noted_.insert({cell, nullptr}).second) return;
    before_.push_back(
        {Before::Kind::Cell, Ref::borrow(cell), Ref(), Ref::borrow(PyCell_GET(cell))});
}

void Undo::note_member(PyObject* owner, PyObject* name) {
    if (!noted_.insert({owner, name}).second) return;
    Ref value = Ref::steal(PyObject_GenericGetAttr(owner, name));
    if (!value) PyErr_Clear();
    before_.push_back(
        {Before::Kind::Member, Ref::borrow(owner), Ref::borrow(name), std::move(value)});
}

void Undo::note_gradient(PyObject* tensor) {
    static PyObject* const name = PyUnicode_InternFromString("grad");
    if (!noted_.insert({tensor, name}).second) return;
    Ref value = gradient_of(tensor);
    if (value.get() == Py_None) value = Ref();
    before_.push_back(
        {Before::Kind::Gradient, Ref::borrow(tensor), Ref::borrow(name), std::move(value)});
}

void Undo::note_contents(PyObject* container) {
    if (!copied_.insert(container).second) return;
    const bool list = PyList_Check(container) || is_deque(container);
    // A set that is filled again may have another order, and an OrderedDict has one of its own.
    if (!list && (!PyDict_Check(container) || PyODict_Check(container))) return lose();
    Ref copy = Ref::steal(list ? PySequence_List(container) : PyDict_Copy(container));
    if (!copy) {
        PyErr_Clear();
        return lose();
    }
    before_.push_back({Before::Kind::Contents, Ref::borrow(container), Ref(), std::move(copy)});
}

bool Undo::put_back(const Before& before) {
    PyObject *o = before.object.get(), *name = before.name.get(), *value = before.value.get();
    switch (before.kind) {
        case Before::Kind::Key: {
            const bool ordered = PyODict_Check(o);
            if (value != nullptr)
                return (ordered ? PyODict_SetItem(o, name, value)
                                : PyDict_SetItem(o, name, value)) == 0;
            if (PyDict_Contains(o, name) != 1) return true;
            return (ordered ? PyODict_DelItem(o, name) : PyDict_DelItem(o, name)) == 0;
        }
        case Before::Kind::Cell:
            return PyCell_Set(o, value) == 0;
        case Before::Kind::Member:
            return PyObject_GenericSetAttr(o, name, value) == 0;
        case Before::Kind::Gradient: {
            at::Tensor gradient = value == nullptr ? at::Tensor() : THPVariable_Unpack(value);
            if (gradient.defined()) fill_dropped(gradient);
            THPVariable_Unpack(o).mutable_grad() = std::move(gradient);
            return true;
        }
        case Before::Kind::Contents:
            if (PyList_Check(o)) return PyList_SetSlice(o, 0, PyList_GET_SIZE(o), value) == 0;
            if (PyDict_Check(o)) {
                PyDict_Clear(o);
                return PyDict_Update(o, value) == 0;
            }
            return Ref::steal(PyObject_CallMethod(o, "clear", nullptr)) &&
                   Ref::steal(PyObject_CallMethod(o, "extend", "(O)", value));
    }
    return true;
}

Py_ssize_t Undo::holds_gradient(PyObject* gradient) const {
    return std::ranges::count_if(before_, [&](const Before& b) {
        return b.kind == Before::Kind::Gradient && b.value.get() == gradient;
    });
}

void Undo::take_back() {
    for (const Before& before : before_ | std::views::reverse)
        if (!put_back(before)) PyErr_Clear();  // a member that was absent
    before_.clear();
}

void Undo::take_back_unfilled_gradients() const {
    for (const Before& before : before_)
        if (before.kind == Before::Kind::Gradient &&
            trace::is_promise(THPVariable_Unpack(before.object.get()).grad()))
            put_back(before);
}

}  // namespace ingot::capture
