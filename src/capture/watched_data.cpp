// Notes where a program gets hold of a tensor's memory in a way that the tensor's version counter
// does not know: what is written there changes the tensor unseen; see capture.h.
//
// `data`, read and set, and `set_` give tensors that share memory and have counters of their own;
// `numpy` gives an array. Whoever keeps what was computed from a tensor asks whether the memory has
// other users (trace/frozen_calls.cpp), and an array of a tensor that needs no gradient is none
// that its storage counts: it gets one for as long as the array lives. Costs some 30 ns where
// `data` is taken, and some 300 ns an array.
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <utility>

#include "capture/capture.h"
#include "capture/ref.h"
#include "trace/silent_changes.h"

namespace ingot::capture {
namespace {

getter original_get = nullptr;
setter original_set = nullptr;
PyCFunctionWithKeywords original_set_memory = nullptr, original_numpy = nullptr;

void note(PyObject* tensor) {
    if (THPVariable_Check(tensor))
        trace::note_silent_change(*THPVariable_Unpack(tensor).unsafeGetTensorImpl());
}

PyObject* get_data(PyObject* tensor, void* closure) {
    PyObject* data = original_get(tensor, closure);
    if (data != nullptr) note(tensor);
    return data;
}

/// Afterwards the tensor shares the memory of what it was set to.
int set_data(PyObject* tensor, PyObject* value, void* closure) {
    const int status = original_set(tensor, value, closure);
    if (status == 0) note(tensor);
    return status;
}

/// `Tensor.set_`.
PyObject* set_memory(PyObject* tensor, PyObject* arguments, PyObject* names) {
    PyObject* result = original_set_memory(tensor, arguments, names);
    if (result != nullptr) note(tensor);
    return result;
}

void free_storage(PyObject* capsule) {
    delete static_cast<c10::Storage*>(PyCapsule_GetPointer(capsule, nullptr));
}

/// The array is gone, and so is the reference that waited for it.
PyObject* let_go(PyObject*, PyObject* reference) {
    Py_DECREF(reference);
    return Py_NewRef(Py_None);
}
PyMethodDef let_go_method = {"let_go", let_go, METH_O, nullptr};

/// The storage counts one user more as long as the array lives.
void count_as_user(const c10::Storage& storage, PyObject* array) {
    auto held = std::make_unique<c10::Storage>(storage);
    const Ref capsule = Ref::steal(PyCapsule_New(held.get(), nullptr, free_storage));
    if (capsule) (void)held.release();
    const Ref callback =
        capsule ? Ref::steal(PyCFunction_New(&let_go_method, capsule.get())) : Ref();
    // Owned by nobody until the array goes.
    if (!callback || PyWeakref_NewRef(array, callback.get()) == nullptr) PyErr_Clear();
}

PyObject* numpy(PyObject* tensor, PyObject* arguments, PyObject* names) {
    PyObject* array = original_numpy(tensor, arguments, names);
    if (array == nullptr || !THPVariable_Check(tensor)) return array;
    const at::Tensor& t = THPVariable_Unpack(tensor);
    if (!t.has_storage() || !t.is_cpu()) return array;
    count_as_user(t.storage(), array);
    note(tensor);
    return array;
}

/// A row of PyTorch's own table of methods, which it never frees; nullptr with an error if it is
/// not where it was.
PyMethodDef* method(PyObject* methods, const char* name) {
    PyObject* found = methods == nullptr ? nullptr : PyDict_GetItemString(methods, name);
    if (found != nullptr && Py_TYPE(found) == &PyMethodDescr_Type) {
        PyMethodDef* row = reinterpret_cast<PyMethodDescrObject*>(found)->d_method;
        if (row->ml_flags == (METH_VARARGS | METH_KEYWORDS)) return row;
    }
    PyErr_Format(PyExc_ImportError, "torch.Tensor.%s is not where it was", name);
    return nullptr;
}

void watch(PyMethodDef* row, PyCFunctionWithKeywords by, PyCFunctionWithKeywords& original) {
    const auto as_method = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(by));
    if (row->ml_meth == as_method) return;
    original = reinterpret_cast<PyCFunctionWithKeywords>(
        reinterpret_cast<void (*)()>(std::exchange(row->ml_meth, as_method)));
}

}  // namespace

bool watch_data() {
    PyTypeObject* base = reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_base;
    PyObject* members = base == nullptr ? nullptr : base->tp_dict;
    PyObject* data = members == nullptr ? nullptr : PyDict_GetItemString(members, "data");
    if (data == nullptr || Py_TYPE(data) != &PyGetSetDescr_Type) {
        PyErr_SetString(PyExc_ImportError, "torch.Tensor.data is not where it was");
        return false;
    }
    PyMethodDef* const set_row = method(members, "set_");
    PyMethodDef* const numpy_row = set_row == nullptr ? nullptr : method(members, "numpy");
    if (numpy_row == nullptr) return false;
    // PyTorch's own table of attributes, which it never frees.
    PyGetSetDef* row = reinterpret_cast<PyGetSetDescrObject*>(data)->d_getset;
    if (row->get != get_data) original_get = std::exchange(row->get, get_data);
    if (row->set != set_data) original_set = std::exchange(row->set, set_data);
    watch(set_row, set_memory, original_set_memory);
    watch(numpy_row, numpy, original_numpy);
    return true;
}

}  // namespace ingot::capture
