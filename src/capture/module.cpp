// The functions that capture adds to `_ingot`; see capture.h.
#include <array>
#include <string_view>
#include <utility>

#include "capture/capture.h"
#include "capture/captured.h"
#include "capture/state.h"

namespace ingot::capture {
namespace {

template <class Value>
struct Named {
    std::string_view name;
    Value value;
};

constexpr std::array<Named<Mark>, 10> kMarks{{{"disable", Mark::Disable},
                                              {"disable_once", Mark::DisableOnce},
                                              {"break", Mark::Break},
                                              {"allow", Mark::Allow},
                                              {"constant", Mark::Constant},
                                              {"true", Mark::True},
                                              {"wide", Mark::Wide},
                                              {"checkpoint", Mark::Checkpoint},
                                              {"annotation", Mark::Annotation},
                                              {"true_for_programs", Mark::TrueForPrograms}}};
constexpr std::array<Named<Stance>, 5> kStances{{{"default", Stance::Default},
                                                 {"force_eager", Stance::ForceEager},
                                                 {"eager_on_recompile", Stance::EagerOnRecompile},
                                                 {"fail_on_recompile", Stance::FailOnRecompile},
                                                 {"eager_then_compile", Stance::EagerThenCompile}}};

template <class Row>
const Row* find(const Row* begin, const Row* end, const char* name) {
    for (; begin != end; ++begin)
        if (begin->name == name) return begin;
    return nullptr;
}

PyObject* capture(PyObject*, PyObject* arguments, PyObject* keywords) {
    static const char* names[] = {"function", "options", nullptr};
    PyObject *function = nullptr, *options = nullptr;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|O!", const_cast<char**>(names),
                                     &function, &PyDict_Type, &options))
        return nullptr;
    if (!PyCallable_Check(function)) {
        PyErr_Format(PyExc_TypeError, "%R is not callable", function);
        return nullptr;
    }
    PyObject* copy = options == nullptr ? PyDict_New() : PyDict_Copy(options);
    if (copy == nullptr) return nullptr;
    PyObject* made = make_captured(function, copy);
    Py_DECREF(copy);
    return made;
}

PyObject* counters(PyObject*, PyObject*) {
    Counters sum = state().dropped;
    for (PyObject* o : state().captured) sum.add(*reinterpret_cast<CapturedObject*>(o)->counters);
    PyObject* result = sum.as_dict();
    PyObject* reasons = PyDict_New();
    if (result == nullptr || reasons == nullptr ||
        PyDict_SetItemString(result, "reasons", reasons) != 0) {
        Py_XDECREF(result);
        Py_XDECREF(reasons);
        return nullptr;
    }
    for (const auto& [reason, count] : state().reasons) {
        PyObject* number = PyLong_FromLongLong(count);
        const int failed =
            number == nullptr ? -1 : PyDict_SetItemString(reasons, reason.c_str(), number);
        Py_XDECREF(number);
        if (failed != 0) {
            Py_DECREF(result);
            Py_DECREF(reasons);
            return nullptr;
        }
    }
    Py_DECREF(reasons);
    return result;
}

PyObject* reset(PyObject*, PyObject*) {
    const auto all = state().captured;
    for (PyObject* o : all) {
        forget(o);
        *reinterpret_cast<CapturedObject*>(o)->counters = {};
    }
    state().dropped = {};
    state().reasons.clear();
    return Py_NewRef(Py_None);
}

PyObject* mark(PyObject*, PyObject* arguments) {
    PyObject* callable = nullptr;
    const char* kind = nullptr;
    if (!PyArg_ParseTuple(arguments, "Oz", &callable, &kind)) return nullptr;
    auto& marks = state().marks;
    if (kind == nullptr) {
        if (marks.erase(callable) != 0) Py_DECREF(callable);
        return Py_NewRef(Py_None);
    }
    const auto* row = find(kMarks.begin(), kMarks.end(), kind);
    if (row == nullptr) {
        PyErr_Format(PyExc_ValueError, "no mark is called %s", kind);
        return nullptr;
    }
    const auto [place, fresh] = marks.emplace(callable, row->value);
    if (fresh) Py_INCREF(callable);
    place->second = row->value;
    return Py_NewRef(Py_None);
}

PyObject* stance(PyObject*, PyObject* name) {
    const char* text = PyUnicode_AsUTF8(name);
    if (text == nullptr) return nullptr;
    const auto* row = find(kStances.begin(), kStances.end(), text);
    if (row == nullptr) {
        PyErr_Format(PyExc_RuntimeError, "invalid torch.compile stance '%s'", text);
        return nullptr;
    }
    const Stance old = std::exchange(state().stance, row->value);
    for (const auto& known : kStances)
        if (known.value == old)
            return PyUnicode_FromStringAndSize(known.name.data(),
                                               static_cast<Py_ssize_t>(known.name.size()));
    return Py_NewRef(Py_None);
}

PyObject* force(PyObject*, PyObject* callable) {
    Py_XSETREF(state().forced, callable == Py_None ? nullptr : Py_NewRef(callable));
    return Py_NewRef(Py_None);
}

PyObject* forget_all(PyObject*, PyObject*) {
    const auto all = state().captured;
    for (PyObject* o : all) forget(o);
    return Py_NewRef(Py_None);
}

PyObject* controls(PyObject*, PyObject* arguments) {
    PyObject *stances = nullptr, *flags = nullptr, *allowed = nullptr;
    PyObject *follow = nullptr, *settings = nullptr;
    if (!PyArg_ParseTuple(arguments, "O!OOOO", &PyDict_Type, &stances, &flags, &allowed, &follow,
                          &settings))
        return nullptr;
    TorchControls& torch = state().torch;
    Py_XSETREF(torch.stances, Py_NewRef(stances));
    Py_XSETREF(torch.flags, PyDict_Check(flags) ? Py_NewRef(flags) : nullptr);
    Py_XSETREF(torch.allowed, Py_NewRef(allowed));
    Py_XSETREF(torch.follow, Py_NewRef(follow));
    Py_XSETREF(torch.settings, Py_NewRef(settings));
    torch.version = 0;
    return torch.follow_stance() ? Py_NewRef(Py_None) : nullptr;
}

PyObject* recording(PyObject*, PyObject*) { return PyBool_FromLong(is_recording()); }

PyMethodDef functions[] = {
    {"capture", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(capture)),
     METH_VARARGS | METH_KEYWORDS, "Captures a callable; see src/capture/capture.h."},
    {"capture_counters", counters, METH_NOARGS, "The counters of all captured functions."},
    {"capture_reset", reset, METH_NOARGS, "Forgets all recordings of the process."},
    {"capture_mark", mark, METH_VARARGS, "Says how calls of a callable are recorded."},
    {"capture_stance", stance, METH_O, "Sets the stance and gives the old one."},
    {"capture_force", force, METH_O,
     "Has a callable make all calls: with the captured function and the arguments. None: no more."},
    {"capture_forget", forget_all, METH_NOARGS,
     "Forgets all recordings of the process; the counters stay."},
    {"capture_controls", controls, METH_VARARGS,
     "Where PyTorch's own controls are; see TorchControls in src/capture/state.h."},
    {"is_recording", recording, METH_NOARGS, "Whether this thread records just now."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_to_module(PyObject* module) {
    return add_captured_type(module) && watch_data() &&
           PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace ingot::capture
