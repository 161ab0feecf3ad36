// See warnings.h.
#include "capture/warnings.h"

#include <array>
#include <optional>
#include <string_view>

namespace ingot::capture {
namespace {

/// The namespace of the module `warnings`.
PyObject* warnings_dict() {
    static PyObject* const dict = [] {
        PyObject* module = PyImport_ImportModule("warnings");  // kept for good
        return module == nullptr ? nullptr : PyModule_GetDict(module);
    }();
    return dict;
}

struct Arguments {
    PyObject *message = nullptr, *category = nullptr, *level = nullptr, *source = nullptr;

    /// False if one is not known here.
    bool take(std::span<PyObject* const> all, PyObject* names) {
        const std::array<PyObject**, 4> places = {&message, &category, &level, &source};
        static constexpr std::array<std::string_view, 4> kNames = {"message", "category",
                                                                   "stacklevel", "source"};
        const std::size_t named =
            names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
        const std::size_t positional = all.size() - named;
        if (positional > places.size()) return false;
        for (std::size_t i = 0; i < positional; ++i) *places[i] = all[i];
        for (std::size_t i = 0; i < named; ++i) {
            const char* name =
                PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, static_cast<Py_ssize_t>(i)));
            std::size_t at = 0;
            while (at < kNames.size() && (name == nullptr || kNames[at] != name)) ++at;
            if (at == kNames.size() || *places[at] != nullptr) return false;
            *places[at] = all[positional + i];
        }
        return message != nullptr && (source == nullptr || source == Py_None);
    }
};

/// The frame that a warning of this level is about, if the recording has it.
std::optional<Frame> frame_of_level(Frame frame, PyObject* level) {
    const long wanted = level == nullptr ? 1 : PyLong_Check(level) ? PyLong_AsLong(level) : 0;
    if (PyErr_Occurred()) PyErr_Clear();
    std::optional<Frame> f = frame;
    for (long n = 1;; ++n) {
        if (!f || wanted < n) return std::nullopt;
        // Python's own frames of imports do not count.
        const char* file = PyUnicode_AsUTF8(f->code()->co_filename);
        if (file == nullptr || std::string_view(file).find("importlib") != std::string_view::npos)
            return std::nullopt;
        if (n == wanted) return f;
        f = f->caller();
    }
}

}  // namespace

Ref warning_filters() {
    PyObject* filters = PyDict_GetItemString(warnings_dict(), "filters");
    Ref copy = filters == nullptr ? Ref() : Ref::steal(PySequence_Tuple(filters));
    if (!copy) PyErr_Clear();
    return copy;
}

bool has_warning_filters(PyObject* expected) {
    PyObject* filters = PyDict_GetItemString(warnings_dict(), "filters");
    if (filters == nullptr || !PyList_CheckExact(filters) ||
        PyList_GET_SIZE(filters) != PyTuple_GET_SIZE(expected))
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i) {
        const Ref now = Ref::borrow(PyList_GET_ITEM(filters, i));
        if (now.get() == PyTuple_GET_ITEM(expected, i)) continue;
        const int same = PyObject_RichCompareBool(now.get(), PyTuple_GET_ITEM(expected, i), Py_EQ);
        if (same < 0) PyErr_Clear();
        if (same != 1 || i >= PyList_GET_SIZE(filters)) return false;
    }
    return true;
}

Ref explicit_warning(Frame frame, std::span<PyObject* const> arguments, PyObject* names) {
    Arguments a;
    if (!a.take(arguments, names) || !PyUnicode_CheckExact(a.message)) return {};
    PyObject* category =
        a.category == nullptr || a.category == Py_None ? PyExc_UserWarning : a.category;
    if (!PyType_Check(category)) return {};
    const std::optional<Frame> place = frame_of_level(frame, a.level);
    if (!place) return {};
    PyObject* globals = place->globals();
    PyObject* module = PyDict_GetItemString(globals, "__name__");
    if (module == nullptr || !PyUnicode_Check(module) || warn_explicit() == nullptr) return {};
    static PyObject* const name = PyUnicode_InternFromString("__warningregistry__");
    const Ref fresh = Ref::steal(PyDict_New());
    PyObject* registry = fresh ? PyDict_SetDefault(globals, name, fresh.get()) : nullptr;
    if (registry == nullptr) PyErr_Clear();
    if (registry == nullptr || !PyDict_Check(registry)) return {};
    Ref made = Ref::steal(Py_BuildValue("OOOiOO", a.message, category, place->code()->co_filename,
                                        place->line(), module, registry));
    if (!made) PyErr_Clear();
    return made;
}

PyObject* warn_explicit() { return PyDict_GetItemString(warnings_dict(), "warn_explicit"); }

}  // namespace ingot::capture
