// Notes where a program gets hold of a tensor's memory in a way that the tensor's version counter
// does not know: what is written there changes the tensor unseen; see capture.h.
//
// `data`, read and set, and `set_` give tensors that share memory and have counters of their own;
// `untyped_storage`, and all that is made of it, gives the memory itself, `numpy` an array, DLPack
// a capsule for another library. Whoever keeps what was computed from a tensor asks whether the
// memory has other users (trace/frozen_calls.cpp); arrays and capsules are none that its storage
// counts, so it gets one for as long as they live. `apply_` and `map_` write without counting, and
// `_unsafe_preserve_version_counter` takes back what was counted. A backward, and the replay of a
// CUDA graph, are noted as such. Costs some 30 ns where one of them is called, some 300 ns an
// array.
#include <ATen/dlpack.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "capture/capture.h"
#include "capture/ref.h"
#include "trace/silent_changes.h"

namespace ingot::capture {
namespace {

getter original_get = nullptr;
setter original_set = nullptr;

const at::Tensor* tensor_of(PyObject* object) {
    return object != nullptr && THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

void note(PyObject* object) {
    if (const at::Tensor* t = tensor_of(object))
        trace::note_silent_change(*t->unsafeGetTensorImpl());
}
void note_written(PyObject* object) {
    if (const at::Tensor* t = tensor_of(object); t != nullptr && t->has_storage())
        trace::note_write(t->storage());
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

// ---- methods and functions: each called as ever, and something noted ----

using WithNames = PyCFunctionWithKeywords;
using Plain = PyCFunction;
using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

WithNames original_set_memory = nullptr, original_numpy = nullptr, original_map = nullptr,
          original_map2 = nullptr, original_dlpack = nullptr, original_versioned_dlpack = nullptr,
          original_backward = nullptr;
Plain original_storage = nullptr, original_apply = nullptr;
Fast original_set_versions = nullptr, original_replay = nullptr;
// pybind11's functions take a tuple before its version 3, which PyTorch has from 2.13 on.
WithNames original_set_versions_of_tuple = nullptr, original_replay_of_tuple = nullptr;

PyObject* set_memory(PyObject* tensor, PyObject* arguments, PyObject* names) {
    PyObject* result = original_set_memory(tensor, arguments, names);
    if (result != nullptr) note(tensor);
    return result;
}

/// Whoever holds what it gives, or a tensor made of it, is a user that the storage counts.
PyObject* untyped_storage(PyObject* tensor, PyObject* nothing) {
    PyObject* storage = original_storage(tensor, nothing);
    if (storage != nullptr) note(tensor);
    return storage;
}

/// These call Python in the middle: what has raised may have written.
PyObject* apply(PyObject* tensor, PyObject* function) {
    PyObject* result = original_apply(tensor, function);
    note_written(tensor);
    return result;
}
PyObject* map(PyObject* tensor, PyObject* arguments, PyObject* names) {
    PyObject* result = original_map(tensor, arguments, names);
    note_written(tensor);
    return result;
}
PyObject* map2(PyObject* tensor, PyObject* arguments, PyObject* names) {
    PyObject* result = original_map2(tensor, arguments, names);
    note_written(tensor);
    return result;
}

void note_all_written(PyObject* list) {
    if (!PyTuple_Check(list) && !PyList_Check(list)) return;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i)
        note_written(PySequence_Fast_GET_ITEM(list, i));
}

/// `_unsafe_set_version_counter(tensors, versions)`.
PyObject* set_versions(PyObject* module, PyObject* const* arguments, Py_ssize_t flags,
                       PyObject* names) {
    PyObject* result = original_set_versions(module, arguments, flags, names);
    if (result != nullptr && PyVectorcall_NARGS(flags) > 0) note_all_written(arguments[0]);
    return result;
}
PyObject* set_versions_of_tuple(PyObject* module, PyObject* arguments, PyObject* names) {
    PyObject* result = original_set_versions_of_tuple(module, arguments, names);
    if (result != nullptr && PyTuple_GET_SIZE(arguments) > 0)
        note_all_written(PyTuple_GET_ITEM(arguments, 0));
    return result;
}

PyObject* run_backward(PyObject* engine, PyObject* arguments, PyObject* names) {
    PyObject* result = original_backward(engine, arguments, names);
    trace::note_possible_writes();
    return result;
}

PyObject* replay(PyObject* graph, PyObject* const* arguments, Py_ssize_t flags, PyObject* names) {
    PyObject* result = original_replay(graph, arguments, flags, names);
    trace::note_graph_replay();
    return result;
}
PyObject* replay_of_tuple(PyObject* graph, PyObject* arguments, PyObject* names) {
    PyObject* result = original_replay_of_tuple(graph, arguments, names);
    trace::note_graph_replay();
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

/// What a capsule of DLPack's holds belongs to whoever takes it, and is freed by its own function:
/// one in front of that lets the storage go.
template <class Managed>
struct Held {
    c10::Storage storage;
    void* context;
    void (*deleter)(Managed*);

    static void count_as_user(const c10::Storage& storage, Managed* managed) {
        managed->manager_ctx =
            new Held{storage, managed->manager_ctx, std::exchange(managed->deleter, &free)};
    }
    static void free(Managed* managed) {
        const std::unique_ptr<Held> held(static_cast<Held*>(managed->manager_ctx));
        managed->manager_ctx = held->context;
        if (held->deleter != nullptr) held->deleter(managed);
    }
};

template <class Managed>
PyObject* watch_capsule(PyObject* capsule, PyObject* arguments, const char* name) {
    if (capsule == nullptr || PyTuple_GET_SIZE(arguments) == 0) return capsule;
    PyObject* const tensor = PyTuple_GET_ITEM(arguments, 0);
    const at::Tensor* t = tensor_of(tensor);
    if (t == nullptr || !t->has_storage() || !PyCapsule_IsValid(capsule, name)) return capsule;
    Held<Managed>::count_as_user(t->storage(),
                                 static_cast<Managed*>(PyCapsule_GetPointer(capsule, name)));
    note(tensor);
    return capsule;
}
PyObject* dlpack(PyObject* module, PyObject* arguments, PyObject* names) {
    return watch_capsule<DLManagedTensor>(original_dlpack(module, arguments, names), arguments,
                                          "dltensor");
}
PyObject* versioned_dlpack(PyObject* module, PyObject* arguments, PyObject* names) {
    return watch_capsule<DLManagedTensorVersioned>(
        original_versioned_dlpack(module, arguments, names), arguments, "dltensor_versioned");
}

// ---- where they stand ----

template <class F>
constexpr int flags_of() {
    if (std::is_same_v<F, WithNames>) return METH_VARARGS | METH_KEYWORDS;
    return std::is_same_v<F, Fast> ? METH_FASTCALL | METH_KEYWORDS : 0;
}

/// PyTorch's own description of a method or function, which it never frees; nullptr if it is none.
PyMethodDef* description(PyObject* found) {
    if (found == nullptr) return nullptr;
    if (PyInstanceMethod_Check(found)) found = PyInstanceMethod_GET_FUNCTION(found);
    if (Py_TYPE(found) == &PyMethodDescr_Type)
        return reinterpret_cast<PyMethodDescrObject*>(found)->d_method;
    return PyCFunction_Check(found) ? reinterpret_cast<PyCFunctionObject*>(found)->m_ml : nullptr;
}

/// False with an error if it is not where it was, or is called in another way.
template <class F>
bool watch(PyObject* members, const char* name, F by, F& original) {
    PyObject* found = members == nullptr ? nullptr : PyDict_GetItemString(members, name);
    PyMethodDef* const row = description(found);
    const int wanted = flags_of<F>();
    if (row == nullptr ||
        (wanted != 0 ? row->ml_flags != wanted : (row->ml_flags & ~(METH_NOARGS | METH_O)) != 0)) {
        PyErr_Format(PyExc_ImportError, "PyTorch's %s is not where it was", name);
        return false;
    }
    const auto as_method = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(by));
    if (row->ml_meth != as_method)
        original = reinterpret_cast<F>(
            reinterpret_cast<void (*)()>(std::exchange(row->ml_meth, as_method)));
    return true;
}

/// `watch` for a function of pybind11's, whichever way its version has it called.
bool watch_bound(PyObject* members, const char* name, Fast by, Fast& original, WithNames by_tuple,
                 WithNames& original_of_tuple) {
    PyMethodDef* const row = description(PyDict_GetItemString(members, name));
    if (row != nullptr && row->ml_flags == flags_of<WithNames>())
        return watch(members, name, by_tuple, original_of_tuple);
    return watch(members, name, by, original);
}

Ref members_of(PyObject* type) {
    return PyType_Check(type) ? Ref::borrow(reinterpret_cast<PyTypeObject*>(type)->tp_dict) : Ref();
}

bool watch_module() {
    const Ref module = Ref::steal(PyImport_ImportModule("torch._C"));
    if (!module) return false;
    PyObject* const members = PyModule_GetDict(module.get());
    if (!watch(members, "_to_dlpack", &dlpack, original_dlpack) ||
        !watch(members, "_to_dlpack_versioned", &versioned_dlpack, original_versioned_dlpack))
        return false;
    PyObject* const autograd = PyDict_GetItemString(members, "_autograd");
    if (autograd == nullptr ||
        !watch_bound(PyModule_GetDict(autograd), "_unsafe_set_version_counter", &set_versions,
                     original_set_versions, &set_versions_of_tuple, original_set_versions_of_tuple))
        return false;
    PyObject* const engine = PyDict_GetItemString(members, "_ImperativeEngine");
    if (engine == nullptr ||
        !watch(members_of(engine).get(), "run_backward", &run_backward, original_backward))
        return false;
    // A build without CUDA has no graphs, but a stand-in in Python.
    PyObject* const graph = PyDict_GetItemString(members, "_CUDAGraph");
    const Ref methods = graph == nullptr ? Ref() : members_of(graph);
    PyObject* found = methods ? PyDict_GetItemString(methods.get(), "replay") : nullptr;
    return description(found) == nullptr ||
           watch_bound(methods.get(), "replay", &replay, original_replay, &replay_of_tuple,
                       original_replay_of_tuple);
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
    if (!watch(members, "set_", &set_memory, original_set_memory) ||
        !watch(members, "numpy", &numpy, original_numpy) ||
        !watch(members, "untyped_storage", &untyped_storage, original_storage) ||
        !watch(members, "apply_", &apply, original_apply) ||
        !watch(members, "map_", &map, original_map) ||
        !watch(members, "map2_", &map2, original_map2) || !watch_module())
        return false;
    // PyTorch's own table of attributes, which it never frees.
    PyGetSetDef* row = reinterpret_cast<PyGetSetDescrObject*>(data)->d_getset;
    if (row->get != get_data) original_get = std::exchange(row->get, get_data);
    if (row->set != set_data) original_set = std::exchange(row->set, set_data);
    return true;
}

}  // namespace ingot::capture
