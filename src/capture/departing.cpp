// See departing.h.
#include "capture/departing.h"

#include <unordered_set>
#include <vector>

#include "capture/objects.h"

namespace ingot::capture {
namespace {

bool lives_anyhow(PyObject* o) {
    return PyType_Check(o) || PyModule_Check(o) || PyCode_Check(o) || is_immutable_c_object(o);
}

/// Whether closing it runs code of its own.
bool is_suspended(PyObject* o) {
    constexpr int kSuspended = -1;  // FRAME_SUSPENDED
    return (PyGen_CheckExact(o) || PyCoro_CheckExact(o) || PyAsyncGen_CheckExact(o)) &&
           reinterpret_cast<PyGenObject*>(o)->gi_frame_state == kSuspended;
}

bool is_called_back(PyObject* o) {
    const Py_ssize_t offset = Py_TYPE(o)->tp_weaklistoffset;
    if (offset == 0) return false;
    const auto* reference =
        *reinterpret_cast<PyWeakReference**>(reinterpret_cast<char*>(o) + offset);
    for (; reference != nullptr; reference = reference->wr_next)
        if (reference->wr_callback != nullptr) return true;
    return false;
}

bool acts_itself(PyObject* o) {
    PyTypeObject* type = Py_TYPE(o);
    if (PyGen_CheckExact(o) || PyCoro_CheckExact(o) || PyAsyncGen_CheckExact(o))
        return is_suspended(o);
    return finalizer_of(type) != nullptr || is_called_back(o);
}

struct Walk {
    std::vector<PyObject*> waiting;
    std::unordered_set<PyObject*> seen;

    static int meet(PyObject* o, void* walk) {
        static_cast<Walk*>(walk)->add(o);
        return 0;
    }
    void add(PyObject* o) {
        if (o != nullptr && !lives_anyhow(o) && seen.insert(o).second) waiting.push_back(o);
    }
    void look_into(PyObject* o) {
        if (PyFunction_Check(o)) {  // not its globals
            const auto* f = reinterpret_cast<PyFunctionObject*>(o);
            for (PyObject* part :
                 {f->func_closure, f->func_defaults, f->func_kwdefaults, f->func_dict})
                add(part);
        } else if (PyObject_IS_GC(o) && Py_TYPE(o)->tp_traverse != nullptr) {
            Py_TYPE(o)->tp_traverse(o, meet, this);
        }
    }
    PyObject* find() {
        while (!waiting.empty()) {
            PyObject* o = waiting.back();
            waiting.pop_back();
            if (acts_itself(o) || seen.size() > kMostDeparting) return o;
            look_into(o);
        }
        return nullptr;
    }
};

}  // namespace

PyObject* acting_when_it_goes(PyObject* object) {
    Walk walk;
    walk.add(object);
    return walk.find();
}

bool is_let_go(PyObject* object) {
    return object != nullptr && finalizer_of(Py_TYPE(object)) != nullptr &&
           !stands_for_itself(object) && has_python_layout(Py_TYPE(object));
}

PyObject* acting_when_contents_go(PyObject* container) {
    Walk walk;
    walk.seen.insert(container);
    walk.look_into(container);
    return walk.find();
}

}  // namespace ingot::capture
