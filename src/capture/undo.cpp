// See undo.h.
#include "capture/undo.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "capture/dict_image.h"
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

void Undo::note_gradient(PyObject* tensor, const at::Tensor& before, std::size_t calls) {
    Before b{Before::Kind::Gradient, Ref::borrow(tensor), Ref(), Ref()};
    b.calls = calls;
    if (trace::is_promise(before))
        b.promise = before;
    else if (before.defined())
        b.value = Ref::steal(THPVariable_Wrap(before));
    before_.push_back(std::move(b));
}

void Undo::note_contents(PyObject* container) {
    if (!copied_.insert(container).second) return;
    Before before{Before::Kind::Contents, Ref::borrow(container), Ref(), Ref()};
    if (PyAnySet_Check(container)) {
        before.set.emplace(container);
    } else {
        if (PyDict_Check(container)) {
            DictImage image = DictImage::of(container);
            before.value = std::move(image.items);
            before.name = std::move(image.order);
        } else {
            before.value =
                Ref::steal(PyList_Check(container) ? PyList_GetSlice(container, 0, PY_SSIZE_T_MAX)
                                                   : PySequence_List(container));
        }
        if (!before.value) {
            PyErr_Clear();
            return lose();
        }
    }
    before_.push_back(std::move(before));
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
            at::Tensor gradient = value == nullptr ? before.promise : THPVariable_Unpack(value);
            if (gradient.defined()) fill_dropped(gradient);
            THPVariable_Unpack(o).mutable_grad() = std::move(gradient);
            return true;
        }
        case Before::Kind::Contents:
            if (PyList_Check(o)) return PyList_SetSlice(o, 0, PyList_GET_SIZE(o), value) == 0;
            if (PyDict_Check(o)) return refill(o, value, name);
            if (before.set) return before.set->restore(o);
            return Ref::steal(PyObject_CallMethod(o, "clear", nullptr)) &&
                   Ref::steal(PyObject_CallMethod(o, "extend", "(O)", value));
    }
    return true;
}

bool Undo::began_with(PyObject* dict, PyObject* key, PyObject* value) const {
    return std::ranges::any_of(before_, [&](const Before& b) {
        return b.kind == Before::Kind::Key && b.object.get() == dict && b.name.get() == key &&
               b.value.get() == value;
    });
}

Py_ssize_t Undo::holds_gradient(PyObject* gradient) const {
    return std::ranges::count_if(before_, [&](const Before& b) {
        return b.kind == Before::Kind::Gradient && b.value.get() == gradient;
    });
}

void Undo::forget() {
    lose();
    const std::vector<Before> gone = std::move(before_);  // what goes with it may write again
    before_.clear();
    moved_.clear();
}

void Undo::take_back() {
    for (const Before& before : before_ | std::views::reverse)
        if (!put_back(before)) PyErr_Clear();  // a member that was absent
    before_.clear();
    for (const IteratorPlace& place : moved_ | std::views::reverse) place.put_back();
    moved_.clear();
}

void Undo::take_back_gradients(std::size_t calls_made) const {
    for (const Before& before : before_ | std::views::reverse)
        if (before.kind == Before::Kind::Gradient && before.calls > calls_made) put_back(before);
}

std::vector<at::Tensor> Undo::promised_gradients() const {
    std::vector<at::Tensor> found;
    for (const Before& before : before_)
        if (before.promise.defined()) found.push_back(before.promise);
    return found;
}

}  // namespace ingot::capture
