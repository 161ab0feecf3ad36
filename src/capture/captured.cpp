// See captured.h.
#include "capture/captured.h"

#include <structmember.h>

namespace ingot::capture {
namespace {

PyTypeObject* captured_type = nullptr;

CapturedObject* as_captured(PyObject* o) { return reinterpret_cast<CapturedObject*>(o); }

PyObject* call(PyObject* o, PyObject* const* arguments, std::size_t flags, PyObject* names) {
    CapturedObject* self = as_captured(o);
    ++self->counters->calls;
    ++self->counters->eager_calls;
    return PyObject_Vectorcall(self->function, arguments, flags, names);
}

int traverse(PyObject* o, visitproc visit, void* arg) {
    CapturedObject* self = as_captured(o);
    Py_VISIT(self->function);
    Py_VISIT(self->options);
    Py_VISIT(self->dict);
    Py_VISIT(Py_TYPE(o));
    return 0;
}

int clear(PyObject* o) {
    CapturedObject* self = as_captured(o);
    Py_CLEAR(self->function);
    Py_CLEAR(self->options);
    Py_CLEAR(self->dict);
    return 0;
}

void finalize(PyObject* o) {
    CapturedObject* self = as_captured(o);
    PyTypeObject* type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (self->weak_references != nullptr) PyObject_ClearWeakRefs(o);
    clear(o);
    state().captured.erase(o);
    state().dropped.add(*self->counters);
    delete self->counters;
    type->tp_free(o);
    Py_DECREF(type);
}

PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
    return object == nullptr || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

PyObject* counters(PyObject* o, PyObject*) { return as_captured(o)->counters->as_dict(); }
PyObject* explain(PyObject* o, PyObject*) { return PyList_New(0); }
PyObject* reset(PyObject* o, PyObject*) { return Py_NewRef(Py_None); }
PyObject* last_failure(PyObject* o, void*) { return Py_NewRef(Py_None); }

PyMethodDef methods[] = {
    {"counters", counters, METH_NOARGS, "What happened to its calls, as a dict."},
    {"explain", explain, METH_NOARGS, "A list with a dict for each recorded segment."},
    {"reset", reset, METH_NOARGS, "Forgets all recordings."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"last_failure", last_failure, nullptr, "The last guard that failed, as a sentence.", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CapturedObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(CapturedObject, weak_references), READONLY,
     nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(CapturedObject, dict), READONLY, nullptr},
    {"function", T_OBJECT, offsetof(CapturedObject, function), READONLY, "What was captured."},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

bool add_captured_type(PyObject* module) {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(finalize)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                  {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, properties},
                                  {Py_tp_members, members},
                                  {0, nullptr}};
    static PyType_Spec spec = {"ingot._ingot.Captured", sizeof(CapturedObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                   Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    captured_type =
        reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &spec, nullptr));
    return captured_type != nullptr && PyModule_AddType(module, captured_type) == 0;
}

PyObject* make_captured(PyObject* function, PyObject* options) {
    auto* self = PyObject_GC_New(CapturedObject, captured_type);
    if (self == nullptr) return nullptr;
    self->vectorcall = call;
    self->function = Py_NewRef(function);
    self->options = Py_NewRef(options);
    self->dict = nullptr;
    self->weak_references = nullptr;
    self->counters = new Counters;
    state().captured.insert(reinterpret_cast<PyObject*>(self));
    PyObject_GC_Track(self);
    return reinterpret_cast<PyObject*>(self);
}

void forget(PyObject*) {}

bool is_recording() { return false; }

}  // namespace ingot::capture
