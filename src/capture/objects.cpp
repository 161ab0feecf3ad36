// See objects.h.
#include "capture/objects.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include "capture/guards.h"

namespace ingot::capture {
namespace {

PyTypeObject* imported(const char* module, const char* name) {
    Ref m = Ref::steal(PyImport_ImportModule(module));
    PyObject* type = m ? PyObject_GetAttrString(m.get(), name) : nullptr;
    if (type == nullptr) PyErr_Clear();
    return reinterpret_cast<PyTypeObject*>(type);  // kept for the life of the process
}

bool is_enumeration(PyTypeObject* type) {
    static PyTypeObject* const meta = imported("enum", "EnumMeta");
    return meta != nullptr && PyType_IsSubtype(Py_TYPE(type), meta);
}

/// `int | None`: never changes, and has no attributes but its own.
bool is_union_of_types(PyObject* o) {
    static PyTypeObject* const type = imported("types", "UnionType");
    return type != nullptr && Py_TYPE(o) == type;
}

/// torch.Tag: pybind11's enumeration, one object a member.
bool is_operator_tag(PyObject* o) {
    static PyTypeObject* const type = imported("torch", "Tag");
    return type != nullptr && Py_TYPE(o) == type;
}

PyTypeObject* deque_class() {
    static PyTypeObject* const type = imported("collections", "deque");
    return type;
}

PyTypeObject* local_class() {
    static PyTypeObject* const type = imported("_thread", "_local");
    return type;
}

PyObject* special(PyTypeObject* type, const char* name) {
    Ref text = Ref::steal(PyUnicode_InternFromString(name));
    return text ? _PyType_Lookup(type, text.get()) : nullptr;
}

}  // namespace

PyTypeObject* module_class() {
    static PyTypeObject* const type = imported("torch.nn", "Module");
    return type;
}

bool is_tensor(PyObject* o) {
    static PyTypeObject* const base = reinterpret_cast<PyTypeObject*>(THPVariableClass)->tp_base;
    return o != nullptr && PyObject_TypeCheck(o, base);
}

bool stands_for_itself(PyObject* o) {
    PyTypeObject* t = Py_TYPE(o);
    return is_union_of_types(o) || is_operator_tag(o) || PyFunction_Check(o) || PyType_Check(o) ||
           PyModule_Check(o) || PyCode_Check(o) || PyCFunction_Check(o) ||
           t == &PyMethodDescr_Type || t == &PyWrapperDescr_Type || t == &PyClassMethodDescr_Type ||
           t == &PyGetSetDescr_Type || t == &PyMemberDescr_Type || THPDtype_Check(o) ||
           THPLayout_Check(o) || THPMemoryFormat_Check(o) ||
           (module_class() != nullptr && PyType_IsSubtype(t, module_class())) || is_enumeration(t);
}

bool is_immutable_c_object(PyObject* o) {
    PyTypeObject* t = Py_TYPE(o);
    return is_plain_constant(o) || is_union_of_types(o) || is_operator_tag(o) ||
           THPDtype_Check(o) || THPDevice_Check(o) || THPLayout_Check(o) ||
           THPMemoryFormat_Check(o) || PyRange_Check(o) || PySlice_Check(o) || PyCode_Check(o) ||
           t == &PyMethodDescr_Type || t == &PyWrapperDescr_Type || t == &PyClassMethodDescr_Type ||
           t == &PyGetSetDescr_Type || t == &PyMemberDescr_Type || PyCFunction_Check(o) ||
           PyUnicode_Check(o) || PyLong_Check(o) || PyFloat_Check(o);
}

bool is_hashed_by_value(PyObject* o) {
    return is_plain_constant(o) || THPDevice_Check(o) || THPDtype_Check(o) ||
           PyTuple_CheckExact(o) || PyUnicode_Check(o) || PyLong_Check(o) || PyFloat_Check(o) ||
           PyFrozenSet_CheckExact(o) || PyRange_Check(o);
}

bool has_python_getattribute(PyTypeObject* type) {
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
    PyObject* found = special(type, "__getattribute__");
    return found != nullptr && PyFunction_Check(found);
}

bool has_python_setattr(PyTypeObject* type) {
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
    PyObject* found = special(type, "__setattr__");
    return found != nullptr && PyFunction_Check(found);
}

bool has_generic_attributes(PyTypeObject* type) {
    if (type->tp_getattr != nullptr) return false;
    if (type->tp_getattro == PyObject_GenericGetAttr) return true;
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
    // A class made in Python whose attribute access was changed there.
    PyObject* found = special(type, "__getattribute__");
    static PyObject* const plain = special(&PyBaseObject_Type, "__getattribute__");
    return found == plain || (found != nullptr && PyFunction_Check(found));
}

PyObject* finalizer_of(PyTypeObject* type) {
    static PyObject* const name = PyUnicode_InternFromString("__del__");
    const bool may = type->tp_finalize != nullptr && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
    return may ? _PyType_Lookup(type, name) : nullptr;
}

bool is_python_class(PyTypeObject* type) {
    return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_base != nullptr &&
           module_class() != nullptr && type->tp_dealloc == module_class()->tp_dealloc;
}

bool has_python_layout(PyTypeObject* type) {
    PyTypeObject* t = type;
    while (is_python_class(t)) t = t->tp_base;
    return t == &PyBaseObject_Type || t == &PyDict_Type || t == &PyODict_Type ||
           t == &PyList_Type || t == &PyTuple_Type || t == &PySet_Type ||
           reinterpret_cast<PyObject*>(t) == PyExc_BaseException;
}

PyObject* python_object(const at::Tensor& t) {
    return t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
}

bool is_deque(PyObject* o) { return o != nullptr && Py_TYPE(o) == deque_class(); }

PyObject* item_of_deque(PyObject* deque, Py_ssize_t index) {
    const Ref item = Ref::steal(PySequence_GetItem(deque, index));
    if (!item) PyErr_Clear();
    return item.get();
}

Ref most_of_deque(PyObject* deque) {
    static PyObject* const name = PyUnicode_InternFromString("maxlen");
    Ref most = Ref::steal(PyObject_GetAttr(deque, name));
    if (!most) PyErr_Clear();
    return most;
}

bool is_local_of_threads(PyTypeObject* type) {
    return local_class() != nullptr && PyType_IsSubtype(type, local_class()) &&
           type->tp_getattro == local_class()->tp_getattro;
}

PyObject* dict_of_thread(PyObject* local) {
    static PyObject* const name = PyUnicode_InternFromString("__dict__");
    const Ref dict = Ref::steal(PyObject_GetAttr(local, name));
    if (!dict) PyErr_Clear();
    return dict.get();
}

bool any_tensor(std::span<PyObject* const> objects, int depth) {
    for (PyObject* o : objects) {
        if (o == nullptr) continue;
        if (is_tensor(o)) return true;
        if (depth > 0 && (PyTuple_Check(o) || PyList_Check(o)) &&
            any_tensor({PySequence_Fast_ITEMS(o), static_cast<std::size_t>(Py_SIZE(o))}, depth - 1))
            return true;
        for (Py_ssize_t i = 0; depth > 0 && is_deque(o) && i < Py_SIZE(o); ++i) {
            PyObject* const item = item_of_deque(o, i);
            if (any_tensor({&item, 1}, depth - 1)) return true;
        }
    }
    return false;
}

std::string text_of(PyObject* name) {
    const char* s = name == nullptr ? nullptr : PyUnicode_AsUTF8(name);
    if (s == nullptr) PyErr_Clear();
    return s == nullptr ? "?" : s;
}

bool is_python_callable(PyObject* o) {
    return PyFunction_Check(o) || (PyMethod_Check(o) && PyFunction_Check(PyMethod_GET_FUNCTION(o)));
}

bool is_generator(PyObject* o) {
    return o != nullptr && (PyGen_CheckExact(o) || PyCoro_CheckExact(o));
}

bool hands_to_python(PyObject* o) {
    if (!Py_IS_TYPE(o, &PyMap_Type) && !Py_IS_TYPE(o, &PyFilter_Type)) return false;
    const Ref parts = Ref::steal(PyObject_CallMethod(o, "__reduce__", nullptr));
    PyErr_Clear();
    if (!parts || !PyTuple_Check(parts.get()) || PyTuple_GET_SIZE(parts.get()) < 2) return false;
    PyObject* made_of = PyTuple_GET_ITEM(parts.get(), 1);
    if (!PyTuple_Check(made_of) || PyTuple_GET_SIZE(made_of) < 2 ||
        !is_python_callable(PyTuple_GET_ITEM(made_of, 0)))
        return false;
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(made_of); ++i) {
        PyObject* iterator = PyTuple_GET_ITEM(made_of, i);
        if (!is_generator(iterator) && !Py_IS_TYPE(iterator, &PyListIter_Type) &&
            !Py_IS_TYPE(iterator, &PyTupleIter_Type))
            return false;
    }
    return true;
}

}  // namespace ingot::capture
